"""The decorators `@implementation` and `@control`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from nsabench import reading
from nsabench.errors import UsageError
from nsabench.model.plan import ImplementationInfo, LeastWork, LibraryRelease
from nsabench.model.source import Source
from nsabench.model.vocabulary import Kind, Role

if TYPE_CHECKING:
    from nsabench.ops import Op

F = TypeVar("F", bound=Callable[..., Any])

ANY_WORK = LeastWork()
AUTHORED = (Role.CANDIDATE, Role.BASELINE, Role.ALTERNATIVE)


class Unsupported(Exception):
    """Raised with a reason by an implementation that does not support a case."""


@dataclass(frozen=True)
class KernelVariant:
    """A specialised kernel that an implementation compiles itself, for example with NVRTC.

    `constants` distinguish it from other variants, such as "D=128 HEADS=8". `shared_bytes` is the
    dynamic shared memory of a block of `threads`. `compiler` is the compiler's name and version.
    `compile` returns the cubin, or raises the compiler's error.
    """

    kernel: str
    constants: str
    threads: int
    shared_bytes: int
    compiler: str
    compile: Callable[[], bytes]


@dataclass(frozen=True)
class Package:
    """A public library that implementations call."""

    name: str  # the name of its distribution
    licence: str
    pip: str = ""  # the arguments of `pip install`, if they differ from the name

    @property
    def install(self) -> str:
        return f"pip install {self.pip or self.name}"

    @property
    def version(self) -> str:  # the installed version, or an empty text
        try:
            return metadata.version(self.name)
        except metadata.PackageNotFoundError:
            return ""

    @property
    def origin(self) -> LibraryRelease:
        return LibraryRelease(package=self.name, version=self.version, licence=self.licence)


class Implementation(ImplementationInfo):
    call: Callable[..., Any]
    config: Callable[..., object] | None = None
    compile_ahead: Callable[[int], Iterable[KernelVariant]] | None = None
    package: Package | None = None


collected: list[Implementation] = []
_source = Source("interactive")


@contextmanager
def collecting_from(source: Source) -> Iterator[None]:
    global _source
    before, _source = _source, source
    try:
        yield
    finally:
        _source = before


def implementation(
    *,
    op: str,
    name: str,
    role: str = "candidate",
    devices: Sequence[str] = ("cuda", "interpreter"),
    config: Callable[..., object] | None = None,
    compile_ahead: Callable[[int], Iterable[KernelVariant]] | None = None,
    distributions: Sequence[str] = (),
    directions: Sequence[str] = (),
    computes: str = "",
    kind: str = Kind.SPECIALISED,
    package: Package | None = None,
    compiled_by: str = "",
) -> Callable[[F], F]:
    """Register the decorated function as an implementation of `op`.

    role: `candidate`, `baseline` or `alternative`.
    devices: where it runs: `cuda`, `cpu`, or `interpreter` (Triton kernels that are only checked).
    config: a function of the same arguments that returns values to record, such as tile sizes.
    compile_ahead: for kernels without Triton, a function that takes a compute capability (89) and
      returns all variants, or raises `Unsupported`.
    distributions, directions: the only ones that it supports; empty: all.
    computes: for an alternative, the other op that it computes, on the sizes that both ops have.
    kind: `general` for a mask, a gather or FlexAttention, which take any selection of keys.
    package: the library that it calls, if that is not the distribution that registers it.
    compiled_by: the compiler of its kernels at run time: `triton`, `nvcc` or `cutlass`.
    """
    if role not in AUTHORED:
        raise UsageError(
            f"implementation {name!r} has the role {role!r}",
            f"give it one of {', '.join(AUTHORED)}.",
        )
    declared = {
        "role": role,
        "devices": devices,
        "config": config,
        "compile_ahead": compile_ahead,
        "distributions": distributions,
        "directions": directions,
        "computes": computes,
        "kind": kind,
        "package": package,
        "origin": package.origin if package is not None else LibraryRelease(),
        "compiled_by": compiled_by,
    }

    def register(call: F) -> F:
        collected.append(_declare(op, name, call, declared))
        return call

    return register


def _declare(
    op: str, name: str, call: Callable[..., Any], declared: dict[str, Any]
) -> Implementation:
    try:
        return Implementation(op=op, name=name, call=call, source=_source, **declared)
    except ValidationError as error:
        raise UsageError(
            f"implementation {name!r}: {reading.first_fault(error)}",
            'correct this argument; write lists as ["cuda", "cpu"].',
        ) from None


@dataclass(frozen=True)
class Honest:
    op: Op
    name: str
    call: Callable[..., Any]

    def __call__(self, *tensors: Any, **options: Any) -> Any:
        return self.call(*tensors, **options)


# Controls that wrap no baseline yet, each with the names of its ops; empty: all ops.
tricks: list[tuple[Implementation, tuple[str, ...]]] = []


def control(
    *ops: str,
    caught_by: str,
    name: str = "",
    devices: Sequence[str] = ("cuda", "cpu"),
    wraps: bool = False,
    needs_order: bool = False,
    distributions: Sequence[str] = (),
    directions: Sequence[str] = ("forward",),
    modes: Sequence[str] = (),
    least: LeastWork = ANY_WORK,
) -> Callable[[F], F]:
    """Register a control: a function that is wrong or dishonest on purpose, to test `caught_by`.

    It belongs to `ops` (none: to every op). Its first argument is a baseline (`Honest`).
    wraps: whether `caught_by` compares its time with that of this baseline.
    needs_order: whether only the order of its work on streams is wrong. If a run cannot observe
      that order, the control is unproven, not missed.
    distributions, directions, modes (`stream`, `graph`): the only ones of its cases; empty: all.
    least: the least compulsory work of its cases; with less, its trick saves no time.
    """

    def register(call: F) -> F:
        declared = {
            "role": Role.CONTROL,
            "devices": devices,
            "caught_by": caught_by,
            "wraps": "baseline" if wraps else "",
            "needs_order": needs_order,
            "distributions": distributions,
            "directions": directions,
            "modes": modes,
            "least": least,
            "kind": Kind.SPECIALISED,
        }
        item = _declare("", name or call.__name__, call, declared)
        tricks.append((item, ops))
        return call

    return register

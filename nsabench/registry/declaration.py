"""The decorators `@implementation`, and `@control` for what is wrong on purpose."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

from nsabench.errors import UsageError
from nsabench.model.plan import LeastWork, Origin
from nsabench.model.source import Source
from nsabench.model.vocabulary import Direction, Kind, Mode, Role, Runs
from nsabench.packages import Package

if TYPE_CHECKING:
    from nsabench.ops import Op

F = TypeVar("F", bound=Callable[..., Any])
E = TypeVar("E", bound=Enum)

ANY_WORK = LeastWork()


class Unsupported(Exception):
    """An implementation does not do this case. The text says why."""


@dataclass(frozen=True)
class KernelVariant:
    """A specialised kernel that an implementation compiles itself, CUDA C++ through NVRTC, say.

    constants: tells this variant from the kernel's others, such as "D=128 HEADS=8".
    threads: threads a block. shared_bytes: dynamic shared memory that a launch asks for, a block.
    compiler: its name and version. compile: returns the cubin, or raises the compiler's error.
    """

    kernel: str
    constants: str
    threads: int
    shared_bytes: int
    compiler: str
    compile: Callable[[], bytes]


@dataclass(frozen=True)
class Implementation:
    """A callable that computes an op, and what its author declared about it."""

    op: str
    name: str
    role: Role
    devices: tuple[Runs, ...]
    caught_by: str
    source: Source
    call: Callable[..., Any]
    config: Callable[..., object] | None = None
    compile_ahead: Callable[[int], Iterable[KernelVariant]] | None = None
    wraps: str = ""
    distributions: tuple[str, ...] = ()
    directions: tuple[Direction, ...] = ()
    modes: tuple[Mode, ...] = ()
    least: LeastWork = ANY_WORK
    computes: str = ""
    kind: Kind = Kind.SPECIALISED
    package: Package | None = None
    compiled_by: str = ""
    computes_by: str = ""

    @property
    def origin(self) -> Origin:
        """The library that it calls, as far as it is installed; empty if it calls none."""
        return self.package.origin if self.package is not None else Origin()


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


def _each(kind: type[E], names: Sequence[str]) -> tuple[E, ...]:
    return tuple(kind(name) for name in names)


def implementation(
    *,
    op: str,
    name: str,
    role: str = "candidate",
    devices: Sequence[str] = ("cuda", "interpreter"),
    caught_by: str = "",
    wraps: str = "",
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

    devices: where it runs: any of `cuda`, `cpu` (timed there), `interpreter` (a Triton kernel: on a
      machine without a GPU it is checked and not timed).
    caught_by, wraps: of a control, the check that must catch it, and the baseline that it is
      without its trick, which is measured beside it.
    config: called as the implementation is. It returns what is recorded, such as the chosen tiles.
    compile_ahead: for kernels that are not Triton's. Called with a compute capability (89), it
      gives every variant that is launched there, or raises `Unsupported`.
    distributions, directions: the only ones that it is for, if not for all.
    computes: of an alternative, the op that it computes on the sizes that both ops have.
    kind: `general` for a mask, a gather or FlexAttention, which take any selection of keys.
    package: the library that it calls, if that is not the one that registers it.
    compiled_by: the compiler of its kernels when they are called: `triton` (or `torch.compile`),
      `nvcc`, `cutlass`. The next process finds them in a cache.
    Raises `UsageError` for an unknown role, device, direction or kind.
    """
    lists = {"devices": devices, "distributions": distributions, "directions": directions}
    for parameter, given in lists.items():
        if isinstance(given, str):
            raise UsageError(
                f"implementation {name!r}: {parameter} is the text {given!r}, and a list is wanted",
                f"write {parameter}=[{given!r}].",
            )

    def register(call: F) -> F:
        try:
            item = Implementation(
                op,
                name,
                Role(role),
                _each(Runs, devices),
                caught_by,
                _source,
                call,
                config,
                compile_ahead,
                wraps,
                tuple(distributions),
                _each(Direction, directions),
                computes=computes,
                kind=Kind(kind),
                package=package,
                compiled_by=compiled_by,
            )
        except ValueError as error:
            raise UsageError(
                f"implementation {name!r}: {error}",
                f"role is one of {', '.join(Role)}; devices are among {', '.join(Runs)}; "
                f"directions are among {', '.join(Direction)}; kind is one of {', '.join(Kind)}.",
            ) from None
        collected.append(item)
        return call

    return register


@dataclass(frozen=True)
class Honest:
    """The baseline `name`: a right implementation of an op, around which a control is wrapped."""

    op: Op
    name: str
    call: Callable[..., Any]

    def __call__(self, *tensors: Any, **options: Any) -> Any:
        return self.call(*tensors, **options)


# Controls of no op yet, each with the ops that it is for: all if none is named.
tricks: list[tuple[Implementation, tuple[str, ...]]] = []


def control(
    *ops: str,
    caught_by: str,
    name: str = "",
    devices: Sequence[str] = ("cuda", "cpu"),
    wraps: bool = False,
    distributions: Sequence[str] = (),
    directions: Sequence[str] = ("forward",),
    modes: Sequence[str] = (),
    least: LeastWork = ANY_WORK,
) -> Callable[[F], F]:
    """Register the decorated function as a control of these ops, or of every op if none is named.

    It is called with an `Honest` implementation of the op, and then as one. Its name is the
    function's, unless one is given.
    wraps: whether its check compares it with what it is wrapped around, which is measured beside
      it. directions: those that it is for; none: all that the op has.
    modes: the only ones in which it can play its trick (`stream`, `graph`), if not both.
    least: the least compulsory work of the cases that it is for.
    """

    def register(call: F) -> F:
        item = Implementation(
            "",
            name or call.__name__,
            Role.CONTROL,
            _each(Runs, devices),
            caught_by,
            _source,
            call,
            wraps="baseline" if wraps else "",
            distributions=tuple(distributions),
            directions=_each(Direction, directions),
            modes=_each(Mode, modes),
            least=least,
        )
        tricks.append((item, ops))
        return call

    return register

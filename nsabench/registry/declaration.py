"""The decorators `@implementation`, and `@control` for what is wrong on purpose."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

from nsabench.errors import UsageError
from nsabench.model.least import LeastWork
from nsabench.model.origin import Origin
from nsabench.model.source import Source
from nsabench.model.vocabulary import Direction, Kind, Mode, Role, Runs
from nsabench.packages import Package

if TYPE_CHECKING:
    from nsabench.ops import Op

F = TypeVar("F", bound=Callable[..., Any])
E = TypeVar("E", bound=Enum)


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
    least: LeastWork = field(default_factory=LeastWork)
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
      machine without a GPU its parity is checked and its time is not taken).
    caught_by: for a control, the check that must catch it.
    wraps: for a control, the baseline that it would be without its trick; measured beside it.
    config: called as the implementation is. It returns what is recorded, such as the chosen tiles.
    compile_ahead: for kernels that are not Triton's. Called with a compute capability (89) on a
      machine that may have no GPU. It gives every variant that the implementation launches there,
      and raises `Unsupported` if there is none, or if its compiler is not installed.
    distributions: the only ones on which it computes the op, if not on all.
    directions: the only ones that it is for (`forward`, `backward`, `step`), if not for all.
    computes: for an alternative, the op that it computes. It is called as one of that op, on the
      sizes that both ops have, and compared with that op's oracle.
    kind: of a baseline or an alternative: `general` for a mask, a gather or FlexAttention, which
      take any selection of keys; else `specialised`.
    package: the library that it calls, if that is not the one that registers it.
    compiled_by: who compiles its kernels when they are called, into a cache that the next process
      finds. `triton`: it or `torch.compile`; under another Triton the baseline is another one.
      `nvcc`: C++. `cutlass`: CuTe DSL.
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
        if item.role is Role.CONTROL and not caught_by:
            raise UsageError(
                f"control {name!r} does not say which check must catch it",
                'give it caught_by="parity" (or another check).',
            )
        if (item.role is Role.ALTERNATIVE) != bool(computes):
            raise UsageError(
                f"implementation {name!r} has the role {item.role} and computes {computes!r}",
                'an alternative, and nothing else, says which op it computes: role="alternative", '
                'computes="causal_attention".',
            )
        collected.append(item)
        return call

    return register


def _each(kind: type[E], names: Sequence[str]) -> tuple[E, ...]:
    return tuple(kind(name) for name in names)


@contextmanager
def collecting_from(source: Source) -> Iterator[None]:
    global _source
    before, _source = _source, source
    try:
        yield
    finally:
        _source = before


@dataclass(frozen=True)
class Honest:
    """The baseline `name`: a right implementation of an op, around which a control is wrapped."""

    op: Op
    name: str
    call: Callable[..., Any]

    def __call__(self, *tensors: Any, **options: Any) -> Any:
        return self.call(*tensors, **options)


@dataclass(frozen=True)
class Trick:
    """A control of no op yet, as its author declared it. ops: every op if none is named."""

    control: Implementation
    wraps: bool
    ops: tuple[str, ...]


tricks: list[Trick] = []


def control(
    *ops: str,
    caught_by: str,
    name: str = "",
    devices: Sequence[str] = ("cuda", "cpu"),
    wraps: bool = False,
    distributions: Sequence[str] = (),
    directions: Sequence[str] = ("forward",),
    modes: Sequence[str] = (),
    least: LeastWork | None = None,
) -> Callable[[F], F]:
    """Register the decorated function as a control of these ops, or of every op if none is named.

    It is called with an `Honest` implementation of the op, and then as one. Its name is the
    function's, unless one is given.
    caught_by: the check that must catch it. wraps: whether that check compares it with what it is
      wrapped around, which is then measured beside it.
    directions: those that it is for; none: all that the op has.
    modes: the only ones in which it can play its trick (`stream`, `graph`), if not both.
    least: the least compulsory work of the cases that it is for.
    """

    def register(call: F) -> F:
        declared = Implementation(
            "",
            name or call.__name__,
            Role.CONTROL,
            _each(Runs, devices),
            caught_by,
            _source,
            call,
            distributions=tuple(distributions),
            directions=_each(Direction, directions),
            modes=_each(Mode, modes),
            least=least or LeastWork(),
        )
        tricks.append(Trick(declared, wraps, ops))
        return call

    return register

"""How code says what it is: `@implementation`, and `@control` for what is wrong on purpose."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
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


class Unsupported(Exception):
    """Raised by an implementation for a case it does not do; the text says why."""


@dataclass(frozen=True)
class KernelVariant:
    """A kernel that an implementation compiles itself (CUDA C++ through NVRTC, say), specialised.

    constants: what tells this variant from the kernel's others, such as "D=128 HEADS=8".
    threads: threads a block. shared_bytes: dynamic shared memory a launch asks for, a block.
    compiler: its name and version. compile: returns the cubin, and raises the compiler's error.
    """

    kernel: str
    constants: str
    threads: int
    shared_bytes: int
    compiler: str
    compile: Callable[[], bytes]


@dataclass(frozen=True)
class Implementation:
    """A callable that fulfils an op, with what its author declared about it."""

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
        """The library that it calls, as far as it is here; empty where it calls none."""
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
    config: called as the implementation is; what it returns (the chosen tiles, say) is recorded.
    compile_ahead: for kernels that are not Triton's. Called with a compute capability (89) on a
      machine that may have no GPU, gives every variant that the implementation launches there;
      raises `Unsupported` where it launches none, or where its compiler is not installed.
    distributions: the only ones on which it is the op's function, where it is not on all.
    directions: the only ones that it is for (`forward`, `backward`, `step`), if not for all.
    computes: for an alternative, the op that it computes: it is called as one of that, on the sizes
      that both ops have, and held to that op's oracle.
    kind: of a baseline or an alternative: `general` where it is a mask, a gather or FlexAttention,
      which any selection of keys could be put through; else `specialised`.
    package: the library that it calls, if that is not the one that registers it.
    compiled_by: `triton` where its kernels are compiled when they are called, by it or by
      `torch.compile`; under another Triton such a baseline is another one. `nvcc` where they are
      C++ that is compiled then, `cutlass` where they are CuTe DSL. What each made is found in its
      cache by the next process.
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
            of_role = Role(role)
            runs_on = tuple(Runs(device) for device in devices)
            of_directions = tuple(Direction(direction) for direction in directions)
            of_kind = Kind(kind)
        except ValueError as error:
            raise UsageError(
                f"implementation {name!r}: {error}",
                f"role is one of {', '.join(Role)}; devices are among {', '.join(Runs)}; "
                f"directions are among {', '.join(Direction)}; kind is one of {', '.join(Kind)}.",
            ) from None
        if of_role is Role.CONTROL and not caught_by:
            raise UsageError(
                f"control {name!r} does not say which check must catch it",
                'give it caught_by="parity" (or another check).',
            )
        if (of_role is Role.ALTERNATIVE) != bool(computes):
            raise UsageError(
                f"implementation {name!r} has the role {of_role} and computes {computes!r}",
                'an alternative, and nothing else, says which op it computes: role="alternative", '
                'computes="causal_attention".',
            )
        collected.append(
            Implementation(
                op,
                name,
                of_role,
                runs_on,
                caught_by,
                _source,
                call,
                config,
                compile_ahead,
                wraps,
                tuple(distributions),
                of_directions,
                computes=computes,
                kind=of_kind,
                package=package,
                compiled_by=compiled_by,
            )
        )
        return call

    return register


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
    """A right implementation of an op, for a control to be wrapped around: the baseline `name`."""

    op: Op
    name: str
    call: Callable[..., Any]

    def __call__(self, *tensors: Any, **options: Any) -> Any:
        return self.call(*tensors, **options)


@dataclass(frozen=True)
class Trick:
    """What makes controls, one an op, as its author declared it. `ops`: none named, every op."""

    name: str
    call: Callable[..., Any]
    caught_by: str
    devices: tuple[Runs, ...]
    wraps: bool
    ops: tuple[str, ...]
    distributions: tuple[str, ...]
    directions: tuple[Direction, ...]
    modes: tuple[Mode, ...]
    least: LeastWork
    source: Source


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
    """Register the decorated function as a control of these ops; of every op, also of those that
    nobody has written yet, if none is named. Its name is its own, unless one is given.

    It is called with an `Honest` implementation of the op and then as one. caught_by: the check
    that must catch it. wraps: whether that check holds it to what it is wrapped around, which is
    then measured beside it. directions: none: all that the op has. modes: the only ones in which
    it can play its trick (`stream`, `graph`), where it cannot in both. least: the least compulsory
    work of the cases that it is for.
    """

    def register(call: F) -> F:
        tricks.append(
            Trick(
                name=name or call.__name__,
                call=call,
                caught_by=caught_by,
                devices=tuple(Runs(device) for device in devices),
                wraps=wraps,
                ops=ops,
                distributions=tuple(distributions),
                directions=tuple(Direction(direction) for direction in directions),
                modes=tuple(Mode(mode) for mode in modes),
                least=least or LeastWork(),
                source=_source,
            )
        )
        return call

    return register

"""The base of all mutants, and the cases that mutants are run on."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from nsabench.model.case import Case, FixedCount, Timing
from nsabench.model.vocabulary import Direction, DType

Kernel = Callable[..., Tensor]

SEED = 11
ROUNDS = 3


@dataclass(frozen=True)
class Mutant:
    """diagnosis: its id. make: returns a fresh kernel, with nothing remembered."""

    name: str
    case: Case
    bug: str
    diagnosis: str
    make: Callable[[], Kernel]


_collected: list[Mutant] = []
_right: dict[str, Kernel] = {}


def case(
    op: str,
    dtype: str,
    distribution: str = "dense",
    direction: str = "forward",
    **shape: int,
) -> Case:
    """A case as the shipped matrices have it, with a few timed calls."""
    return Case(
        op=op,
        shape=shape,
        dtype=DType(dtype),
        direction=Direction(direction),
        distribution=distribution,
        timeout_s=60,
        seed=SEED,
        timing=Timing(
            warmup_s=1e-4, stopping=FixedCount(kind="fixed_count", rounds=ROUNDS), rotate=2
        ),
    )


def right(op: str) -> Callable[[Kernel], Kernel]:
    """The decorated kernel is the right one of this op, of which mutants are made."""

    def register(kernel: Kernel) -> Kernel:
        _right[op] = kernel
        return kernel

    return register


def mutant(case: Case, bug: str, diagnosis: str) -> Callable[[Kernel], Kernel]:
    """The decorated kernel has this bug."""

    def register(kernel: Kernel) -> Kernel:
        _add(kernel.__name__, case, bug, diagnosis, lambda: kernel)
        return kernel

    return register


def broken_steps(case: Case, bug: str, diagnosis: str, steps: Any) -> None:
    """Add the right kernel with other `Steps`."""

    def kernel(*tensors: Tensor, **options: Any) -> Tensor:
        return _right[case.op](*tensors, **options, steps=steps)

    _add(bug, case, bug, diagnosis, lambda: kernel)


def mutant_that_remembers(case: Case, bug: str, diagnosis: str) -> Callable[[Any], Any]:
    """As `mutant`, for a function that makes a kernel whose bug hangs on the calls before."""

    def register(make: Callable[[], Kernel]) -> Callable[[], Kernel]:
        _add(make.__name__, case, bug, diagnosis, make)
        return make

    return register


def _add(name: str, case: Case, bug: str, diagnosis: str, make: Callable[[], Kernel]) -> None:
    _collected.append(Mutant(f"{case.op}-{case.direction}-{name}", case, bug, diagnosis, make))


def mutants() -> list[Mutant]:
    """All of them, from every file of this folder."""
    _load()
    return list(_collected)


def right_kernels() -> dict[str, Kernel]:
    """The right kernel of each op."""
    _load()
    return dict(_right)


def _load() -> None:
    package = __name__.rpartition(".")[0]
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
        if not module.name.startswith("test_"):
            importlib.import_module(f"{package}.{module.name}")

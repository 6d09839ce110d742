"""The base of all mutants, and the cases that mutants are run on."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import signature
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from nsabench.model.case import Case, FixedCount, Timing
from nsabench.model.vocabulary import Direction, DType
from tests.checker.mutants import gradient

Kernel = Callable[..., Tensor]
Change = Callable[[SimpleNamespace], dict[str, Any]]
Spoil = Callable[[Tensor, SimpleNamespace], Tensor | None]

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
    op: str, dtype: str, distribution: str = "dense", direction: str = "forward", **shape: int
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


def right_kernel(case: Case) -> Kernel:
    """Return the kernel that the mutants of a case are made of."""
    kernel = _right[case.op]
    backward = case.direction is Direction.BACKWARD
    return partial(kernel, steps=gradient.RIGHT) if backward else kernel


def mutant(case: Case, bug: str, diagnosis: str) -> Callable[[Kernel], Kernel]:
    """The decorated kernel has this bug."""

    def register(kernel: Kernel) -> Kernel:
        add(case, bug, diagnosis, kernel)
        return kernel

    return register


def broken_steps(case: Case, bug: str, diagnosis: str, steps: Any) -> None:
    """Add the right kernel with other `Steps`."""
    add(case, bug, diagnosis, lambda *x, **options: _right[case.op](*x, **options, steps=steps))


def broken_inputs(case: Case, bug: str, diagnosis: str, change: Change) -> None:
    """Add the right kernel on other arguments: what `change` returns for those that it gets."""

    def kernel(*tensors: Tensor, **options: Any) -> Tensor:
        of = arguments(case, tensors, options)
        return right_kernel(case)(**{**of, **change(SimpleNamespace(**of))})

    add(case, bug, diagnosis, kernel)


def broken_output(case: Case, bug: str, diagnosis: str, change: Spoil) -> None:
    """Add the right kernel, whose output `change` alters in place or replaces."""

    def kernel(*tensors: Tensor, **options: Any) -> Tensor:
        out = right_kernel(case)(*tensors, **options)
        other = change(out, SimpleNamespace(**arguments(case, tensors, options)))
        return out if other is None else other

    add(case, bug, diagnosis, kernel)


def unwritten(*index: Any) -> Spoil:
    """Return a change of an output that leaves zeros at the index."""

    def spoil(out: Tensor, _: SimpleNamespace) -> None:
        out[index] = 0

    return spoil


def heads_in_turn(case: Case) -> None:
    """Add a kernel that deals query heads, axis 2 or the last but one, to KV heads in turn."""

    def kernel(*tensors: Tensor, **options: Any) -> Tensor:
        of = arguments(case, tensors, options)
        axis, kv_axis = of["q"].dim() - 2, 1 if case.op.startswith("decode") else 2
        order = torch.arange(of["q"].shape[axis]).view(-1, of["k"].shape[kv_axis]).T.flatten()
        out = right_kernel(case)(**{**of, "q": of["q"].index_select(axis, order)})
        return torch.empty_like(out).index_copy(axis, order, out)

    bug = "query heads are dealt to KV heads in turn"
    add(case, bug, "heads-dealt-in-turn", kernel)


def mutant_that_remembers(case: Case, bug: str, diagnosis: str) -> Callable[[Any], Any]:
    """As `mutant`, for a function that makes a kernel whose bug hangs on the calls before."""

    def register(make: Callable[[], Kernel]) -> Callable[[], Kernel]:
        _add(case, bug, diagnosis, make)
        return make

    return register


def arguments(case: Case, tensors: Sequence[Tensor], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a kernel of this case by name."""
    return {**dict(zip(signature(_right[case.op]).parameters, tensors, strict=False)), **options}


def add(case: Case, bug: str, diagnosis: str, kernel: Kernel) -> None:
    _add(case, bug, diagnosis, lambda: kernel)


def _add(case: Case, bug: str, diagnosis: str, make: Callable[[], Kernel]) -> None:
    _collected.append(Mutant(f"{case.op}-{case.direction}-{bug}", case, bug, diagnosis, make))


def mutants() -> list[Mutant]:
    """All of them, from every file of this folder."""
    _load()
    return list(_collected)


def _load() -> None:
    package = __name__.rpartition(".")[0]
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
        if not module.name.startswith("test_"):
            importlib.import_module(f"{package}.{module.name}")

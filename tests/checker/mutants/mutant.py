"""Make mutants: right kernels with one bug, each with the case on which it runs."""

from dataclasses import dataclass
from functools import partial
from inspect import signature
from types import SimpleNamespace
from typing import Any

import torch

from nsabench.model.case import Case
from tests.checker.mutants.kernel import RIGHT, RIGHT_BACKWARD
from tests.checker.mutants.right import KERNELS
from tests.checking import a_case, rounds

MUTANTS = []


@dataclass(frozen=True)
class Mutant:
    """diagnosis: the id of the diagnosis that the bug must have."""

    case: Case
    bug: str
    diagnosis: str
    kernel: Any

    @property
    def name(self):
        return f"{self.case.op}-{self.case.direction}-{self.bug}"


def case(op, dtype, distribution="dense", direction="forward", **shape):
    """Return a case with a few timed calls."""
    fields = {"dtype": dtype, "distribution": distribution, "direction": direction}
    return a_case(op, shape, **fields, seed=11, timing=rounds(3, warmup_s=1e-4, rotate=2))


def right_kernel(case):
    """Return the kernel from which the mutants of a case are made."""
    kernel = KERNELS[case.op]
    return partial(kernel, steps=RIGHT_BACKWARD) if case.direction == "backward" else kernel


def named(case, tensors, options):
    """Return the arguments of a kernel of this case by name."""
    return {**dict(zip(signature(KERNELS[case.op]).parameters, tensors, strict=False)), **options}


def broken_steps(*rows):
    """Add right kernels with other steps: (case, bug, diagnosis, steps)."""
    for case, bug, diagnosis, steps in rows:
        MUTANTS.append(Mutant(case, bug, diagnosis, partial(KERNELS[case.op], steps=steps)))


def broken_edges(*rows):
    """Add right kernels whose queries see other keys: (case, bug, diagnosis, change).

    change: maps the first key of each query, and the end after its last key, to others.
    """
    for case, bug, diagnosis, change in rows:
        steps = RIGHT.changed(edges=lambda self, lo, hi, change=change: change(lo, hi))
        broken_steps((case, bug, diagnosis, steps))


def broken_inputs(*rows):
    """Add right kernels on other arguments: (case, bug, diagnosis, change).

    change: returns others for some of the arguments that it gets.
    """
    for case, bug, diagnosis, change in rows:

        def kernel(*tensors, case=case, change=change, **options):
            given = named(case, tensors, options)
            return right_kernel(case)(**{**given, **change(SimpleNamespace(**given))})

        MUTANTS.append(Mutant(case, bug, diagnosis, kernel))


def broken_outputs(*rows):
    """Add right kernels with other outputs: (case, bug, diagnosis, change).

    change: alters the output in place, or returns another.
    """
    for case, bug, diagnosis, change in rows:

        def kernel(*tensors, case=case, change=change, **options):
            out = right_kernel(case)(*tensors, **options)
            other = change(out, SimpleNamespace(**named(case, tensors, options)))
            return out if other is None else other

        MUTANTS.append(Mutant(case, bug, diagnosis, kernel))


def heads_in_turn(*cases):
    """Add kernels that deal query heads to KV heads in turn, instead of in groups."""
    for case in cases:

        def kernel(*tensors, case=case, **options):
            given = named(case, tensors, options)
            axis, kv_axis = given["q"].dim() - 2, 1 if case.op.startswith("decode") else 2
            heads, groups = given["q"].shape[axis], given["k"].shape[kv_axis]
            order = torch.arange(heads).view(-1, groups).T.flatten()
            out = right_kernel(case)(**{**given, "q": given["q"].index_select(axis, order)})
            return torch.empty_like(out).index_copy(axis, order, out)

        bug = "query heads are dealt to KV heads in turn"
        MUTANTS.append(Mutant(case, bug, "heads-dealt-in-turn", kernel))


def put(**arguments):
    """Return a change that replaces arguments by these."""
    return lambda x: arguments


def on(names, change):
    """Return a change of the arguments with these names, separated by blanks."""
    return lambda x: {name: change(getattr(x, name)) for name in names.split()}


def at(*index):
    """Return a change of a tensor to a part of it."""
    return lambda x: x[index]


def first(axis):
    """Return a change of a tensor that repeats its first element along an axis."""
    return lambda x: x.narrow(axis, 0, 1).expand_as(x)


def unwritten(*index):
    """Return a change of an output that leaves zeros at the index."""

    def spoil(out, x):
        out[index] = 0

    return spoil


def stale(index):
    """Return a change of an output that leaves a part, `index(arguments)`, as in the call
    before."""
    before = []

    def spoil(out, x):
        before.append(out.clone())
        out[index(x)] = before[max(len(before) - 2, 0)][index(x)]

    return spoil


def sequences_one_late(x):
    late = x.cu_seqlens + 1
    late[0], late[-1] = 0, x.q.shape[1]
    return {"cu_seqlens": late}

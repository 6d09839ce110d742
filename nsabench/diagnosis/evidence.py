"""What a diagnosis works on: inputs, output and oracle, thinned out to a few rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from nsabench.ops.contract import Inputs, Op

# Input elements that a thinned-out problem may have: an oracle call on them takes milliseconds.
ELEMENTS = 1 << 20
LEAST_ROWS = 2
FAR_OFF = 4.0  # a row is wrong if its error is within this factor of the worst row's


@dataclass(frozen=True)
class Hypothesis:
    """A mistake in words ("attends to key 0 only") and the float64 output that it would give."""

    text: str
    predict: Callable[[], Tensor]


@dataclass(frozen=True)
class Evidence:
    """`rows` are the rows of the full problem that `inputs`, `output` and `oracle` hold; `off` is
    the absolute error of every element of the full problem, `wrong` marks its rows that are off."""

    op: Op
    full: Inputs
    off: Tensor
    wrong: Tensor
    rows: Tensor
    inputs: Inputs
    output: Tensor
    oracle: Tensor
    previous: Tensor | None

    @property
    def neighbours(self) -> Tensor | None:
        """The row after each of `rows`, in a circle; None where rows are not independent."""
        count = self.full.tensors["q"].shape[0]
        independent = rows_are_independent(self.full, count)
        return (self.rows + 1) % count if independent and count > 1 else None

    def with_tensor(self, name: str, tensor: Tensor) -> Inputs:
        """The inputs with one tensor replaced."""
        return Inputs({**self.inputs.tensors, name: tensor}, self.inputs.options)

    def with_options(self, **options: float) -> Inputs:
        """The inputs with some options replaced."""
        return Inputs(self.inputs.tensors, {**self.inputs.options, **options})

    def of_rows(self, rows: Tensor) -> Inputs:
        """The inputs of other rows of the full problem."""
        return Inputs({name: t[rows] for name, t in self.full.tensors.items()}, self.inputs.options)


def gather(op: Op, inputs: Inputs, output: Tensor, previous: Tensor | None) -> Evidence:
    """Thin a problem out to some of its wrong rows, if rows have nothing to do with each other."""
    oracle = op.oracle(inputs)
    off = (output.double() - oracle).abs()
    by_row = off.flatten(1).mean(1)
    wrong = by_row >= by_row.max() / FAR_OFF
    rows = torch.arange(len(off), device=output.device)
    thin = inputs
    if rows_are_independent(inputs, len(off)):
        rows = rows[wrong]
        each = sum(t[0].numel() for t in inputs.tensors.values())
        count = max(LEAST_ROWS, ELEMENTS // each)
        if count < len(rows):
            rows = rows[torch.linspace(0, len(rows) - 1, count).round().long()]
        thin = Inputs({n: t[rows] for n, t in inputs.tensors.items()}, inputs.options)
    return Evidence(
        op=op,
        full=inputs,
        off=off,
        wrong=wrong,
        rows=rows,
        inputs=thin,
        output=output[rows].double(),
        oracle=oracle[rows],
        previous=previous[rows].double() if previous is not None else None,
    )


def rows_are_independent(inputs: Inputs, count: int) -> bool:
    """Whether the first axis of every tensor counts the same rows, so that some of them can be
    looked at alone."""
    return all(t.shape[0] == count for t in inputs.tensors.values())

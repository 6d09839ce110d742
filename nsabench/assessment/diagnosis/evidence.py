"""What a diagnosis works on: inputs, output and oracle, thinned out to a few rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from nsabench.ops import Inputs, Op

# Input elements that a thinned-out problem may have: an oracle call on them takes milliseconds.
ELEMENTS = 1 << 20
LEAST_ROWS = 2
FAR_OFF = 4.0  # a row is wrong if its error is within this factor of the worst row's


@dataclass(frozen=True)
class Hypothesis:
    """A mistake in words ("attends to key 0 only") and the float64 output that it would give."""

    text: str
    predict: Callable[[], Tensor]


Take = Callable[[Inputs, Tensor], Inputs]


@dataclass(frozen=True)
class Evidence:
    """`rows` are the rows of the full problem that `inputs`, `output` and `oracle` hold; `off` is
    the absolute error of every element of the full problem, `wrong` marks its rows that are off.

    take: makes of the full problem that of some rows by themselves; None where none can stand
      alone, and then `inputs` is the full problem.
    """

    op: Op
    full: Inputs
    off: Tensor
    wrong: Tensor
    rows: Tensor
    inputs: Inputs
    output: Tensor
    oracle: Tensor
    previous: Tensor | None
    take: Take | None

    def of_rows(self, offset: int) -> Inputs | None:
        """The inputs of the rows so far behind these, in a circle; None where there are none."""
        count = self.wrong.numel()
        if self.take is None or count == 1:
            return None
        return self.take(self.full, (self.rows + offset) % count)

    def with_tensor(self, name: str, tensor: Tensor) -> Inputs:
        """The inputs with one tensor replaced."""
        return Inputs({**self.inputs.tensors, name: tensor}, self.inputs.options)

    def with_options(self, **options: float) -> Inputs:
        """The inputs with some options replaced."""
        return Inputs(self.inputs.tensors, {**self.inputs.options, **options})


def gather(
    op: Op, inputs: Inputs, output: Tensor, previous: Tensor | None, take: Take | None = None
) -> Evidence:
    """Thin a problem out to some of its wrong rows, if rows have nothing to do with each other.

    take: as of `Evidence`, for an op whose rows are not simply the first axis of every tensor.
    """
    oracle = op.oracle(inputs)
    off = (output.double() - oracle).abs()
    # With `take` a row is whatever holds one query of all heads, else an index of the first axis.
    lead = off.shape[:-2] if take is not None else off.shape[:1]
    by_row = off.reshape(lead.numel(), -1).mean(1)
    wrong = by_row >= by_row.max() / FAR_OFF
    rows = torch.arange(len(by_row), device=output.device)
    if take is None and op.rows_stand_alone and rows_are_independent(inputs, len(by_row)):
        take = _take_first_axis
    if take is None:
        thin, of_thin = inputs, oracle
    else:
        rows = rows[wrong]
        each = sum(t.numel() for t in take(inputs, rows[:1]).tensors.values())
        count = max(LEAST_ROWS, ELEMENTS // max(each, 1))
        if count < len(rows):
            rows = rows[torch.linspace(0, len(rows) - 1, count).round().long()]
        thin = take(inputs, rows)
        of_thin = op.oracle(thin)

    def thinned(whole: Tensor) -> Tensor:
        return whole.reshape(lead.numel(), -1)[rows].reshape(of_thin.shape).double()

    return Evidence(
        op=op,
        full=inputs,
        off=off,
        wrong=wrong.reshape(lead),
        rows=rows,
        inputs=thin,
        output=thinned(output),
        oracle=of_thin,
        previous=thinned(previous) if previous is not None else None,
        take=take,
    )


def _take_first_axis(inputs: Inputs, rows: Tensor) -> Inputs:
    return Inputs({n: t[rows] for n, t in inputs.tensors.items()}, inputs.options)


def rows_are_independent(inputs: Inputs, count: int) -> bool:
    """Whether the first axis of every tensor counts the same rows, so that some of them can be
    looked at alone."""
    return all(t.shape[0] == count for t in inputs.tensors.values())

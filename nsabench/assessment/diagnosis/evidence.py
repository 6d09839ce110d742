"""What a diagnosis works on: inputs, output and oracle, thinned out to a few rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from nsabench import ops
from nsabench.assessment.diagnosis.selected import Selection
from nsabench.ops import Inputs, Op

# Input elements that a thinned-out problem may have: an oracle call on them takes milliseconds.
ELEMENTS = 1 << 20
LEAST_ROWS, MOST_ROWS = 2, 32
FAR_OFF = 4.0  # a vector is wrong if its error is within this factor of the worst one's


@dataclass(frozen=True)
class Hypothesis:
    """A mistake in words ("attends to key 0 only") and the float64 output that it would give."""

    text: str
    predict: Callable[[], Tensor]


Select = Callable[[Inputs, Tensor], Selection]
Lead = Callable[[Inputs], tuple[int, ...]]


@dataclass(frozen=True)
class Evidence:
    """`rows` are the rows of the full problem that `inputs`, `output` and `oracle` hold.

    op: that of the thin problem. off: the absolute error of every element of the full problem.
    wrong: which of its vectors (of the last axis) are off. marked: which of the thin problem's;
    the hypotheses are held to these. select: gives some rows of an op that selects keys.
    independent: rows are indices of the first axis. With neither, `inputs` is the full problem.
    """

    op: Op
    full: Inputs
    off: Tensor
    wrong: Tensor
    whole: Tensor
    whole_output: Tensor
    rows: Tensor
    count: int
    inputs: Inputs
    output: Tensor
    oracle: Tensor
    marked: Tensor
    previous: Tensor | None
    selection: Selection | None
    select: Select | None
    independent: bool

    @property
    def of_selection(self) -> Selection:
        """The rows' keys. Raises `ValueError` where the op is not one that selects keys."""
        if self.selection is None:
            raise ValueError(f"nobody said which keys the rows of {self.op.name} select")
        return self.selection

    def of_rows(self, offset: int) -> Inputs | None:
        """The inputs of the rows so far behind these, in a circle; None where there are none."""
        if self.count == 1 or not (self.select or self.independent):
            return None
        return self._thin_inputs(self.full, (self.rows + offset) % self.count)

    def of_inputs(self, inputs: Inputs) -> Tensor:
        """What these rows would be if the inputs of the full problem were others."""
        return self.op.oracle(self._thin_inputs(inputs, self.rows))

    def _thin_inputs(self, inputs: Inputs, rows: Tensor) -> Inputs:
        if self.select is not None:
            return self.select(inputs, rows).alone()
        return _take_first_axis(inputs, rows) if self.independent else inputs

    @property
    def vectors(self) -> Tensor:
        """Which vectors (of the last axis) of the full result the thin one holds, as if all were on
        one axis: int64 [n]."""
        each = self.wrong.numel() // self.count
        within = torch.arange(each, device=self.rows.device)
        return (self.rows.unsqueeze(1) * each + within).flatten()

    def with_tensor(self, name: str, tensor: Tensor) -> Inputs:
        """The inputs with one tensor replaced."""
        return Inputs({**self.inputs.tensors, name: tensor}, self.inputs.options)

    def with_options(self, **options: float) -> Inputs:
        """The inputs with some options replaced."""
        return Inputs(self.inputs.tensors, {**self.inputs.options, **options})

    def mae(self, expected: Tensor) -> float:
        """The mean absolute error of the marked vectors against what they were to be. What is to be
        may leave some out, since rounding decides it; infinite where it leaves out most."""
        off = (self.output - expected).abs().mean(-1)[self.marked]
        told = off[off.isfinite()]
        return float(told.mean()) if 2 * told.numel() > off.numel() else math.inf


def gather(
    op: Op,
    inputs: Inputs,
    output: Tensor,
    oracle: Tensor,
    previous: Tensor | None,
    select: Select | None = None,
    lead: Lead | None = None,
) -> Evidence:
    """Thin a problem out to some of its wrong rows, if rows have nothing to do with each other.

    oracle: float64, what the output should be; both are zero in rows that nobody is held to.
    select: the keys of some rows, for an op whose rows are not simply the first axis of every
      tensor. lead: the shape that its rows are counted in; a row holds the query heads that share
      a KV head.
    """
    off = (output.double() - oracle).abs()
    by_vector = off.mean(-1)
    wrong = by_vector >= by_vector.max() / FAR_OFF
    independent = select is None and op.rows_stand_alone and rows_are_independent(inputs, len(off))
    count = math.prod(lead(inputs)) if lead is not None else len(off)
    rows = torch.arange(count, device=output.device)
    selection, of, thin = None, op, inputs
    if select is not None or independent:
        rows = _some(rows[wrong.reshape(count, -1).any(1)], _sizes(inputs, select))
        if select is not None:
            selection = select(inputs, rows)
            of, thin = ops.get("selection_ranges"), selection.alone()
        else:
            thin = _take_first_axis(inputs, rows)
    of_thin = of.oracle(thin) if thin is not inputs else oracle

    def thinned(whole: Tensor) -> Tensor:
        return whole.reshape(count, -1)[rows].reshape(of_thin.shape)

    marked = wrong.reshape(count, -1)[rows].reshape(of_thin.shape[:-1])
    return Evidence(
        op=of,
        full=inputs,
        off=off,
        wrong=wrong,
        whole=oracle,
        whole_output=output,
        rows=rows,
        count=count,
        inputs=thin,
        output=thinned(output).double(),
        oracle=of_thin,
        marked=marked,
        previous=(
            thinned(previous).double()
            if previous is not None and previous.shape == oracle.shape
            else None
        ),
        selection=selection,
        select=select,
        independent=independent,
    )


def _sizes(inputs: Inputs, select: Select | None) -> Callable[[Tensor], int]:
    """How many input elements some rows have."""

    def of_rows(rows: Tensor) -> int:
        taken = select(inputs, rows).alone() if select else _take_first_axis(inputs, rows)
        return sum(t.numel() for t in taken.tensors.values())

    return of_rows


def _some(rows: Tensor, elements: Callable[[Tensor], int]) -> Tensor:
    """As many of the rows, evenly, as a thin problem may have."""
    few = rows[torch.linspace(0, len(rows) - 1, min(len(rows), 4)).round().long()]
    each = elements(few) // len(few)
    count = min(max(LEAST_ROWS, ELEMENTS // max(each, 1)), MOST_ROWS)
    if count >= len(rows):
        return rows
    return rows[torch.linspace(0, len(rows) - 1, count).round().long()]


def _take_first_axis(inputs: Inputs, rows: Tensor) -> Inputs:
    return Inputs({n: t[rows] for n, t in inputs.tensors.items()}, inputs.options)


def rows_are_independent(inputs: Inputs, count: int) -> bool:
    """Whether the first axis of every tensor counts the same rows, so that some of them can be
    looked at alone."""
    return all(t.shape[0] == count for t in inputs.tensors.values())

"""What a diagnosis works on: inputs, output and oracle, thinned out to a few rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from nsabench import ops
from nsabench.checker.diagnosis.selected import Selection
from nsabench.ops import Inputs, Op

# Input elements that a thinned-out problem may have: an oracle call on them takes milliseconds.
ELEMENTS = 1 << 20
LEAST_ROWS, MOST_ROWS = 2, 32
FAR_OFF = 4.0  # a vector is wrong if its error is within this factor of the worst one's


@dataclass(frozen=True)
class Hypothesis:
    """A mistake in words ("attends to key 0 only") and the float64 output that it gives."""

    text: str
    predict: Callable[[], Tensor]


Select = Callable[[Inputs, Tensor], Selection]
Lead = Callable[[Inputs], tuple[int, ...]]
# Mistakes in words, and inputs on which the right function gives what each mistake gives.
Mistakes = Iterator[tuple[str, Inputs]]


@dataclass(frozen=True)
class Evidence:
    """`inputs`, `output` and `oracle` are a thin problem: some rows of the full one.

    op: the op of the thin problem. off: the absolute error of every element of the full problem.
    whole, whole_output: its oracle and output. wrong: which of its vectors (of the last axis) are
    off. rows: its rows in the thin problem, of `count`. marked: the vectors of the thin problem
    that hypotheses must explain. select: gives some rows of an op that selects keys. independent:
    rows are indices of the first axis. With neither, the thin problem is the full one.
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
        """The keys of the rows. Raises `ValueError` if the op does not select keys."""
        if self.selection is None:
            raise ValueError(f"the rows of {self.op.name} do not select keys")
        return self.selection

    def of_rows(self, offset: int) -> Inputs | None:
        """Return the inputs of the rows so far behind these, in a circle, if there are any."""
        if self.count == 1 or not (self.select or self.independent):
            return None
        return self._thin_inputs(self.full, (self.rows + offset) % self.count)

    def of_inputs(self, inputs: Inputs) -> Tensor:
        """Compute these rows for other inputs of the full problem."""
        return self.op.oracle(self._thin_inputs(inputs, self.rows))

    def _thin_inputs(self, inputs: Inputs, rows: Tensor) -> Inputs:
        if self.select is not None:
            return self.select(inputs, rows).alone()
        return _take_first_axis(inputs, rows) if self.independent else inputs

    @property
    def vectors(self) -> Tensor:
        """The vectors (of the last axis) of the full result that the thin one holds, as indices of
        one axis: int64 [n]."""
        each = self.wrong.numel() // self.count
        within = torch.arange(each, device=self.rows.device)
        return (self.rows.unsqueeze(1) * each + within).flatten()

    def mae(self, expected: Tensor) -> float:
        """Return the mean absolute error of the marked vectors.

        Vectors that are left out because of rounding do not count; infinite if most are.
        """
        off = (self.output - expected).abs().mean(-1)[self.marked]
        finite = off[off.isfinite()]
        return float(finite.mean()) if 2 * finite.numel() > off.numel() else math.inf


def gather(
    op: Op,
    inputs: Inputs,
    output: Tensor,
    oracle: Tensor,
    previous: Tensor | None,
    select: Select | None = None,
    lead: Lead | None = None,
) -> Evidence:
    """Thin a problem out to some of its wrong rows, if rows are independent.

    oracle: float64, what the output should be; both are zero in rows that are not compared.
    select: the keys of some rows, for an op whose rows are not the first axis of every tensor.
    lead: the shape that its rows are counted in; a row holds the query heads of a KV head.
    """
    off = (output.double() - oracle).abs()
    by_vector = off.mean(-1)
    wrong = by_vector >= by_vector.max() / FAR_OFF
    independent = select is None and op.rows_stand_alone and rows_are_independent(inputs, len(off))
    count = math.prod(lead(inputs)) if lead is not None else len(off)
    rows = torch.arange(count, device=output.device)
    selection, of, thin = None, op, inputs
    if select is not None or independent:
        rows = _some(rows[wrong.reshape(count, -1).any(1)], inputs, select)
        if select is not None:
            selection = select(inputs, rows)
            of, thin = ops.get("selection_ranges"), selection.alone()
        else:
            thin = _take_first_axis(inputs, rows)
    of_thin = of.oracle(thin) if thin is not inputs else oracle

    def thinned(whole: Tensor) -> Tensor:
        return whole.reshape(count, -1)[rows].reshape(of_thin.shape)

    marked = wrong.reshape(count, -1)[rows].reshape(of_thin.shape[:-1])
    if previous is not None:
        previous = thinned(previous).double() if previous.shape == oracle.shape else None
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
        previous=previous,
        selection=selection,
        select=select,
        independent=independent,
    )


def evenly(rows: Tensor, most: int) -> Tensor:
    """Return at most so many of the rows, evenly spread."""
    return rows[torch.linspace(0, len(rows) - 1, min(len(rows), most)).round().long()]


def _some(rows: Tensor, inputs: Inputs, select: Select | None) -> Tensor:
    """Return as many of the rows, evenly, as a thin problem may have."""
    few = evenly(rows, 4)
    taken = select(inputs, few).alone() if select else _take_first_axis(inputs, few)
    each = sum(t.numel() for t in taken.tensors.values()) // len(few)
    return evenly(rows, min(max(LEAST_ROWS, ELEMENTS // max(each, 1)), MOST_ROWS))


def _take_first_axis(inputs: Inputs, rows: Tensor) -> Inputs:
    return Inputs({n: t[rows] for n, t in inputs.tensors.items()}, inputs.options)


def rows_are_independent(inputs: Inputs, count: int) -> bool:
    """Return whether the first axis of every tensor counts the same rows."""
    return all(t.shape[0] == count for t in inputs.tensors.values())

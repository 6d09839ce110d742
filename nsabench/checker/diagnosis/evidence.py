"""Take a few wrong rows of a problem, and the keys that these select, to try many hypotheses."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from nsabench import ops
from nsabench.checker.diagnosis.search import FAR_OFF, Diagnosis
from nsabench.ops import Inputs, Op

# The most input elements of a thinned-out problem, unless LEAST_ROWS rows have more. With so few
# elements, an oracle call takes milliseconds.
ELEMENTS = 1 << 20
LEAST_ROWS, MOST_ROWS = 2, 32

# Maps inputs and the indices [R] of rows to the spans [R,n,2] of keys that these rows select.
Spans = Callable[[Inputs, Tensor], Tensor]
OtherInputs = Iterator[tuple[Diagnosis, Inputs]]
# A mistake, and what rows select because of it: spans, or lists of keys with possible repetitions.
OtherKeys = Iterator[tuple[Diagnosis, Tensor | list[Tensor]]]


@dataclass(frozen=True)
class Known:
    """The known mistakes of an op, in its inputs or keys. `spans` returns the right keys."""

    inputs: Callable[[Inputs], OtherInputs] = lambda inputs: iter(())
    spans: Spans | None = None
    keys: Callable[..., OtherKeys] = lambda inputs, rows: iter(())


def coordinates(flat: Tensor, shape: Sequence[int]) -> tuple[Tensor, ...]:
    found = []  # torch.unravel_index takes seconds to import
    for size in reversed(shape):
        found.append(flat % size)
        flat = flat // size
    return tuple(reversed(found))


def by_head(inputs: Inputs) -> tuple[Tensor, Tensor, Tensor]:
    """View q as [..., h, D], k as [B,H,L,D], v as [B,H,L,Dv]. A KV head has h query heads."""
    q, k, v = (inputs.tensors[name] for name in ("q", "k", "v"))
    if k.dim() == 2:  # packed keys
        return q, k[None, None], v[None, None]
    if k.dim() == 3:  # keys of each row
        return q.unsqueeze(1), k.unsqueeze(1), v.unsqueeze(1)
    if q.dim() == 5:  # grouped already
        return q, k, v
    if q.dim() == 4:  # sequences
        k, v = k.transpose(1, 2), v.transpose(1, 2)
    return q.unflatten(-2, (k.shape[1], -1)), k, v


def place_rows(inputs: Inputs, rows: Tensor) -> tuple[Tensor, ...]:
    """Return the place of each row: batch, token and KV head, as far as the op has them."""
    return coordinates(rows, by_head(inputs)[0].shape[:-2])


def make_spans(first: Tensor, end: Tensor) -> Tensor:
    spans = torch.stack([first, end], -1)
    return spans if spans.dim() == 3 else spans.unsqueeze(1)


def list_keys(spans: Tensor, keys: int) -> list[Tensor]:
    """Return the keys in the spans [R,n,2] of each row. A key in two spans is listed twice."""
    start, end = spans.clamp(0, keys).unbind(-1)
    counts = (end - start).clamp(min=0)
    each = counts.flatten()
    shift = (start.flatten() - (each.cumsum(0) - each)).repeat_interleave(each)
    found = torch.arange(len(shift), device=spans.device) + shift
    return list(found.split(counts.sum(1).tolist()))


def unite(spans: Tensor, keys: int) -> list[Tensor]:
    return [row.unique() for row in list_keys(spans, keys)]


@dataclass(frozen=True)
class Selection:
    """Rows of queries q [R,h,D]. Row r selects the keys `chosen[r]`: int64, ascending, each once.

    The keys belong to KV head `head[r]` of batch `batch[r]`, in k [B,H,L,D] and v [B,H,L,Dv].
    """

    q: Tensor
    k: Tensor
    v: Tensor
    batch: Tensor
    head: Tensor
    chosen: Sequence[Tensor]
    sm_scale: float

    @classmethod
    def take_rows(cls, inputs: Inputs, rows: Tensor, spans: Spans) -> Selection:
        q, k, v = by_head(inputs)
        place = place_rows(inputs, rows)
        batch, head = (place[0], place[-1]) if len(place) > 1 else (0 * rows, 0 * rows)
        chosen = unite(spans(inputs, rows).long(), k.shape[2])
        return cls(q[place], k, v, batch, head, chosen, inputs.options["sm_scale"])

    @property
    def count(self) -> Tensor:
        return torch.tensor([len(keys) for keys in self.chosen], device=self.q.device)

    def gather(
        self,
        chosen: Sequence[Tensor] | None = None,
        batch: Tensor | None = None,
        head: Tensor | None = None,
        head_of_v: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return each row's k [R,L,D] and v [R,L,Dv]. Places after a row's last key are padding."""
        index = pad_sequence(list(self.chosen if chosen is None else chosen), batch_first=True)
        if not index.shape[1]:
            index = index.new_zeros(len(index), min(1, self.k.shape[2]))
        b = (self.batch if batch is None else batch).unsqueeze(1)
        h = (self.head if head is None else head).unsqueeze(1)
        v_head = h if head_of_v is None else head_of_v.unsqueeze(1)
        return self.k[b, h, index], self.v[b, v_head, index]

    def alone(self) -> Inputs:
        k, v = (x[None] for x in self.gather())
        if not k.shape[2]:  # an op needs at least one key, even if no row selects any
            k, v = (torch.nn.functional.pad(x, (0, 0, 0, 1)) for x in (k, v))
        ranges = torch.stack([torch.zeros_like(self.count), self.count], -1).int()
        tensors = {"q": self.q[None, None], "k": k, "v": v, "ranges": ranges[None, None, :, None]}
        return Inputs(tensors, {"sm_scale": self.sm_scale, "selected_len": k.shape[2]})

    def attend(
        self,
        chosen: Sequence[Tensor] | None = None,
        unscored: Sequence[Tensor] | None = None,
        **other: Tensor,
    ) -> Tensor:
        """Compute the float64 output [R,h,Dv] with other keys, or another batch or head.

        chosen: a key that occurs twice counts twice. unscored: marks the chosen keys that get a
        score of 0. other: see `gather`.
        """
        chosen = self.chosen if chosen is None else chosen
        k, v = self.gather(chosen, **other)
        scores = self.q.double() @ k.double().mT * self.sm_scale
        if unscored is not None:
            scores = scores.masked_fill(pad_sequence(list(unscored), True).unsqueeze(1), 0.0)
        count = torch.tensor([len(keys) for keys in chosen], device=k.device)
        behind = torch.arange(k.shape[1], device=k.device) >= count.view(-1, 1, 1)
        weights = torch.softmax(scores.masked_fill(behind, -torch.inf), -1).nan_to_num(0.0)
        return weights @ v.double()


class Evidence:
    """A wrong output as two problems: the full one, and a thinned-out one for hypotheses.

    full, whole, whole_output, off: inputs, oracle, output and absolute errors of the full problem.
    wrong: marks the vectors (of the last axis) of the full problem whose mean error is at least
      1 / FAR_OFF of the largest mean error.
    rows: the indices of the rows in the thin problem. With `spans` they are a few wrong rows, and a
      row is the query heads of one KV head at one (batch, token), as far as the op has these.
      Without `spans` they are all indices of the output's first axis.
    marked: `wrong` in the thin problem: the vectors that hypotheses must explain.
    """

    def __init__(
        self,
        op: Op,
        inputs: Inputs,
        output: Tensor,
        oracle: Tensor,
        previous: Tensor | None,
        spans: Spans | None = None,
    ) -> None:
        self.full, self.whole, self.whole_output = inputs, oracle, output
        self.off = (output.double() - oracle).abs()
        by_vector = self.off.mean(-1)
        self.wrong = by_vector >= by_vector.max() / FAR_OFF
        self.spans = spans
        self.count = math.prod(by_head(inputs)[0].shape[:-2]) if spans else len(oracle)
        self.rows = torch.arange(self.count, device=output.device)
        self.op, self.inputs, self.oracle = op, inputs, oracle
        self.selection: Selection | None = None
        if spans is not None:
            self.rows = self._choose_rows(spans)
            self.selection = Selection.take_rows(inputs, self.rows, spans)
            self.op, self.inputs = ops.get("selection_ranges"), self.selection.alone()
            self.oracle = self.op.oracle(self.inputs)
        self.output = self.take(output).double()
        self.marked = self._split(self.wrong)[self.rows].reshape(self.oracle.shape[:-1])
        self.previous = None
        if previous is not None and previous.shape == oracle.shape:
            self.previous = self.take(previous).double()

    def _split(self, x: Tensor) -> Tensor:
        return x.reshape(self.count, -1)

    def take(self, whole: Tensor) -> Tensor:
        return self.shape(self._split(whole)[self.rows])

    def _choose_rows(self, spans: Spans) -> Tensor:
        wrong = self.rows[self._split(self.wrong).any(1)]
        few = choose_evenly(wrong, 4)
        taken = Selection.take_rows(self.full, few, spans).alone().tensors.values()
        each = sum(tensor.numel() for tensor in taken) // len(few)
        return choose_evenly(wrong, min(max(LEAST_ROWS, ELEMENTS // max(each, 1)), MOST_ROWS))

    def compute(self, inputs: Inputs) -> Tensor:
        if self.spans is None:
            return self.op.oracle(inputs)
        return self.shape(Selection.take_rows(inputs, self.rows, self.spans).attend())

    def attend(self, chosen: Sequence[Tensor] | None = None, **changes: object) -> Tensor:
        assert self.selection is not None
        return self.shape(self.selection.attend(chosen, **changes))  # type: ignore[arg-type]

    def shape(self, rows: Tensor) -> Tensor:
        return rows.reshape(self.oracle.shape)

    def mae(self, expected: Tensor) -> float:
        """Return the mean absolute error of finite marked vectors; inf if half are not finite."""
        off = (self.output - expected).abs().mean(-1)[self.marked]
        finite = off[off.isfinite()]
        return float(finite.mean()) if 2 * finite.numel() > off.numel() else math.inf


def choose_evenly(rows: Tensor, most: int) -> Tensor:
    return rows[torch.linspace(0, len(rows) - 1, min(len(rows), most)).round().long()]

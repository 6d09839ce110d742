"""selection_ranges: every query attends to the union of n spans of its group's keys.

q [B,S,G,h,D], k [B,G,S_kv,D], v [B,G,S_kv,Dv], ranges int32 [B,S,G,n,2] -> out [B,S,G,h,Dv]. Spans
are half-open. Overlaps count once, and parts outside of the keys are cut off. A span whose end is
not after its start is empty. A query without keys gives zeros. No query selects more keys than
selected_len, which is known on the host. The op is the selection of arXiv 2502.11089, section
3.3.2, but no implementation has to gather keys.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from nsabench.model.vocabulary import Direction
from nsabench.ops import _attention
from nsabench.ops._attention import (
    VALUES,
    AttentionOp,
    AttentionPart,
    AttentionShape,
    Axes,
    Indices,
    Ints,
)
from nsabench.ops._op import Inputs, Size, by_device

# Limits the oracle's mask and float64 scores of a chunk of queries to a few hundred MB.
ORACLE_CHUNK_ELEMENTS = 1 << 24
# Limits the memory of the host for drawing and counting spans to some GB.
MOST_SPANS = 1 << 26
BEYOND = 7  # how many keys before the first, or after the last, a span out of bounds reaches


class RangesShape(AttentionShape):
    """B batches, S queries, G groups, H heads a group (h above), head dims D and Dv. S_kv keys.
    n_spans spans a query, with L keys in their union, or fewer in some distributions.
    """

    B: Size
    S: Size
    G: Size
    H: Size
    D: Size
    Dv: Size
    S_kv: Size
    n_spans: Size
    L: Size

    @model_validator(mode="after")
    def _fits(self) -> RangesShape:
        if self.S_kv < self.L:
            raise ValueError(f"L={self.L} keys cannot be selected from S_kv={self.S_kv}")
        if self.rows * self.n_spans > MOST_SPANS:
            raise ValueError(f"B*S*G*n_spans={self.rows * self.n_spans} is over {MOST_SPANS}")
        return self

    @property
    def rows(self) -> int:
        return self.B * self.S * self.G


class SelectionRanges(AttentionOp):
    name = "selection_ranges"
    check_shapes = by_device(
        cpu=(
            "B=1,S=4,G=2,H=2,D=32,S_kv=128,n_spans=2,L=64",
            "B=2,S=3,G=1,H=3,D=32,S_kv=100,n_spans=3,L=51",
        ),
        cuda=(
            "B=1,S=1024,G=4,H=16,D=128,S_kv=8192,n_spans=16,L=1024",
            "B=2,S=333,G=2,H=8,D=128,S_kv=5000,n_spans=8,L=640",
        ),
    )
    arguments = ("q", "k", "v", "ranges")
    options = ("sm_scale", "selected_len")
    shape_model = RangesShape
    directions = (Direction.FORWARD, Direction.BACKWARD)
    distributions = (
        *("disjoint", "mixed", "touching", "overlapping", "unsorted", "reversed"),
        *("out_of_bounds", "empty_rows", "all_empty"),
        *VALUES,
    )

    def axes(self, shape: RangesShape, distribution: str, seed: int) -> Axes:
        return (shape.B, shape.S, shape.G, shape.H), (shape.B, shape.G, shape.S_kv)

    def count(self, shape: RangesShape, distribution: str, seed: int) -> tuple[int, int, int]:
        """Count what `AttentionOp` asks for. A key that several queries select is read once."""
        spans = _draw_spans(shape, distribution, seed)
        selected = int(_count_union(spans.reshape(shape.rows, -1, 2), shape.S_kv).sum())
        touched = sum(
            _count_touched(spans[b, :, g].reshape(-1, 2), shape.S_kv)
            for b in range(shape.B)
            for g in range(shape.G)
        )
        return shape.H * selected, touched, 4 * spans.size

    def indices(self, shape: RangesShape, distribution: str, seed: int) -> Indices:
        return {"ranges": _draw_spans(shape, distribution, seed).astype(np.int32)}

    def drawn_options(self, shape: RangesShape, distribution: str, seed: int) -> dict[str, Any]:
        return {**super().drawn_options(shape, distribution, seed), "selected_len": shape.L}

    def parts(self, inputs: Inputs) -> Iterator[AttentionPart]:
        import torch

        q, k, ranges = (inputs.tensors[name] for name in ("q", "k", "ranges"))
        batches, queries, groups, heads, _ = q.shape
        step = max(1, ORACLE_CHUNK_ELEMENTS // (k.shape[2] * max(heads, ranges.shape[3])))
        key = torch.arange(k.shape[2], device=q.device)
        for b, g in itertools.product(range(batches), range(groups)):
            for s in range(0, queries, step):
                rows = (b, slice(s, s + step), g)
                spans = ranges[rows].long().unsqueeze(-1)
                keep = ((key >= spans[:, :, 0]) & (key < spans[:, :, 1])).any(1).unsqueeze(1)
                call = partial(_attention.attend, scale=inputs.options["sm_scale"], keep=keep)
                yield AttentionPart(rows, (b, g), call)


def _draw_spans(shape: RangesShape, distribution: str, seed: int) -> Ints:
    spans = _draw_rows(distribution, shape.rows, shape.n_spans, shape.L, shape.S_kv, seed)
    return spans.reshape(shape.B, shape.S, shape.G, shape.n_spans, 2)


def _draw_rows(
    distribution: str, rows: int, count: int, selected: int, keys: int, seed: int
) -> Ints:
    """Draw half-open spans [rows, count, 2]. If none is empty, their union has `selected` keys.

    - disjoint: equal spans with gaps, sorted. unsorted: disjoint spans in any order.
    - touching: each span begins where the one before it ends.
    - overlapping: every other span covers half of the next one.
    - mixed: rows have very unequal spans that select `selected` keys, and may have empty ones.
    - out_of_bounds: the first span begins before key 0, and the last ends after the last key.
    - reversed: every other span has its ends swapped and is empty.
    - empty_rows: a quarter of the rows (at least one) is empty. all_empty: all rows are empty.
    """
    rng = np.random.default_rng(seed)
    if distribution == "mixed":
        used = 1 + rng.permutation(np.arange(rows) % count)
        weights = np.where(np.arange(count) < used[:, None], rng.exponential(1, (rows, count)), 0)
    else:
        weights = np.ones((rows, count))
    widths = _split_total(weights, selected)
    room = rng.exponential(1, (rows, count + 1))  # before, between and after the spans
    if distribution == "overlapping":
        room[:, 1:count:2] = 0
    elif distribution == "out_of_bounds":
        room[:, 0] = 0
        if count > 1:
            room[:, count] = 0
    gaps = _split_total(room, keys - selected)
    if distribution == "touching":
        gaps[:, 1:count] = 0
    starts = np.cumsum(gaps[:, :count], 1) + np.cumsum(widths, 1) - widths
    bounds = np.stack([starts, starts + widths], -1)
    if distribution == "overlapping":
        bounds[:, : count - 1 : 2, 1] += widths[:, 1::2] // 2
    elif distribution == "unsorted":
        bounds = rng.permuted(bounds.view([("", bounds.dtype)] * 2), axis=1).view(bounds.dtype)
        bounds = bounds.reshape(rows, count, 2)
    elif distribution == "reversed":
        bounds[:, ::2] = bounds[:, ::2, ::-1]
    elif distribution == "out_of_bounds":
        bounds[:, 0, 0] = -BEYOND
        if count > 1:
            bounds[:, -1, 1] = keys + BEYOND
    elif distribution == "empty_rows":
        bounds[rng.permutation(rows)[: max(1, rows // 4)]] = 0
    elif distribution == "all_empty":
        bounds[:] = 0
    return bounds.astype(np.int64)


def _split_total(weights: NDArray[np.float64], total: int) -> Ints:
    ends = np.cumsum(weights, 1)
    ends = np.rint(ends / ends[:, -1:] * total).astype(np.int64)
    return np.diff(ends, axis=1, prepend=0)


def _count_union(spans: Ints, keys: int) -> Ints:
    """Count the keys that each row of spans [rows, count, 2] selects: [rows]."""
    clamped = np.clip(spans, 0, keys)
    order = np.argsort(clamped[..., 0], axis=1)
    starts, ends = (np.take_along_axis(clamped[..., i], order, 1) for i in (0, 1))
    # In the order of their starts, each span adds its keys after the ends of all earlier spans.
    before = np.maximum.accumulate(np.pad(ends, ((0, 0), (1, 0)))[:, :-1], axis=1)
    sizes: Ints = np.maximum(ends - np.maximum(starts, before), 0).sum(1)
    return sizes


def _count_touched(spans: Ints, keys: int) -> int:
    clamped = np.clip(spans, 0, keys)
    filled = clamped[clamped[..., 1] > clamped[..., 0]]
    begins = np.bincount(filled[:, 0], minlength=keys + 1)
    ends = np.bincount(filled[:, 1], minlength=keys + 1)
    return int((np.cumsum(begins - ends) > 0).sum())


OP = SelectionRanges()

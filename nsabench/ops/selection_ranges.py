"""selection_ranges: every query attends to the union of n spans of its group's keys, in place.

q [B,S,G,h,D], k [B,G,S_kv,D], v [B,G,S_kv,Dv], ranges int32 [B,S,G,n,2] -> out [B,S,G,h,Dv]. Spans
are half-open. Overlaps count once, and what lies outside the keys is cut off. A span whose end is
not behind its start is empty. A query without keys gives zeros. selected_len: no query selects more
keys; a model knows it on the host (n blocks of l'). (arXiv 2502.11089, section 3.3.2, without the
gather.)"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from pydantic import model_validator

from nsabench.model.vocabulary import Direction
from nsabench.ops import _draws
from nsabench.ops._attention import AttentionOp, AttentionShape, Axes, Indices, Part, attend
from nsabench.ops._contract import Inputs, Size, by_device
from nsabench.ops._draws import Ints

# Bounds the oracle's mask and float64 scores of a chunk of queries to a few hundred MB.
ORACLE_CHUNK_ELEMENTS = 1 << 24
# They are drawn on the host, and counted in the supervisor: some GB at most.
MOST_SPANS = 1 << 26


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
        *_draws.VALUES,
    )

    def axes(self, shape: RangesShape, distribution: str, seed: int) -> Axes:
        return (shape.B, shape.S, shape.G, shape.H), (shape.B, shape.G, shape.S_kv)

    def count(self, shape: RangesShape, distribution: str, seed: int) -> tuple[int, int, int]:
        """A key that several queries of a group select must come from memory only once."""
        spans = _draw_spans(shape, distribution, seed)
        selected = int(_draws.union_sizes(spans.reshape(shape.rows, -1, 2), shape.S_kv).sum())
        touched = sum(
            _draws.touched(spans[b, :, g].reshape(-1, 2), shape.S_kv)
            for b in range(shape.B)
            for g in range(shape.G)
        )
        return shape.H * selected, touched, 4 * spans.size

    def indices(self, shape: RangesShape, distribution: str, seed: int) -> Indices:
        return {"ranges": _draw_spans(shape, distribution, seed).astype(np.int32)}

    def drawn_options(self, shape: RangesShape, distribution: str, seed: int) -> dict[str, Any]:
        return {**super().drawn_options(shape, distribution, seed), "selected_len": shape.L}

    def parts(self, inputs: Inputs) -> Iterator[Part]:
        import torch

        q, k, ranges = (inputs.tensors[name] for name in ("q", "k", "ranges"))
        batches, queries, groups, heads, _ = q.shape
        step = max(1, ORACLE_CHUNK_ELEMENTS // (k.shape[2] * max(heads, ranges.shape[3])))
        key = torch.arange(k.shape[2], device=q.device)
        for b, g in itertools.product(range(batches), range(groups)):
            for s in range(0, queries, step):
                rows = (b, slice(s, s + step), g)
                spans = ranges[rows].long().unsqueeze(-1)
                chosen = ((key >= spans[:, :, 0]) & (key < spans[:, :, 1])).any(1)
                call = partial(attend, scale=inputs.options["sm_scale"], keep=chosen.unsqueeze(1))
                yield Part(rows, (b, g), call)


def _draw_spans(shape: RangesShape, distribution: str, seed: int) -> Ints:
    spans = _draws.spans(distribution, shape.rows, shape.n_spans, shape.L, shape.S_kv, seed)
    return spans.reshape(shape.B, shape.S, shape.G, shape.n_spans, 2)


OP = SelectionRanges()

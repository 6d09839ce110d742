"""selection_varlen: rows of unequal length, their keys packed one after another.

q [N,H,D], k [total,D], v [total,Dv], cu_seqlens int32 [N+1] -> out [N,H,Dv]. Row i attends to the
keys from cu_seqlens[i] to cu_seqlens[i+1] - 1. A row without keys gives zeros. No row has more keys
than max_seqlen, which is known on the host.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from nsabench.ops._attention import VALUES, AttentionOp, AttentionPart, Axes, Indices, Ints, attend
from nsabench.ops._op import Inputs, by_device
from nsabench.ops._sequences import cumulate
from nsabench.ops.selection_rows import RowsShape


class VarlenShape(RowsShape):
    """Here, L is the length of the longest row."""


class SelectionVarlen(AttentionOp):
    name = "selection_varlen"
    check_shapes = by_device(
        cpu=("N=8,H=4,D=32,L=64", "N=5,H=3,D=32,L=77"),
        cuda=("N=1024,H=8,D=128,L=1024", "N=1023,H=8,D=128,L=500"),
    )
    arguments = ("q", "k", "v", "cu_seqlens")
    options = ("sm_scale", "max_seqlen")
    shape_model = VarlenShape
    distributions = ("spread", "equal", "mixed", "empty_rows", "all_empty", *VALUES)

    def axes(self, shape: VarlenShape, distribution: str, seed: int) -> Axes:
        total = int(_draw_lengths(distribution, shape.N, shape.L, seed).sum())
        return (shape.N, shape.H), (total,)

    def count(self, shape: VarlenShape, distribution: str, seed: int) -> tuple[int, int, int]:
        [total] = self.axes(shape, distribution, seed)[1]
        return shape.H * total, total, 4 * (shape.N + 1)

    def indices(self, shape: VarlenShape, distribution: str, seed: int) -> Indices:
        return {"cu_seqlens": cumulate(_draw_lengths(distribution, shape.N, shape.L, seed))}

    def drawn_options(self, shape: VarlenShape, distribution: str, seed: int) -> dict[str, Any]:
        return {**super().drawn_options(shape, distribution, seed), "max_seqlen": shape.L}

    def parts(self, inputs: Inputs) -> Iterator[AttentionPart]:
        for row, (start, end) in enumerate(pairwise(inputs.tensors["cu_seqlens"].tolist())):
            keys = slice(start, end)
            yield AttentionPart(row, keys, partial(attend, scale=inputs.options["sm_scale"]))


def _draw_lengths(distribution: str, rows: int, longest: int, seed: int) -> Ints:
    """Draw lengths of packed rows, at most `longest`, in an order that the seed decides.

    - spread: evenly from 1 to `longest`. A single row has `longest`.
    - equal and `VALUES`: all have `longest`. mixed: three quarters are an eighth as long.
    - empty_rows: as spread, but a quarter of the rows has no key. all_empty: no row has a key.
    """
    steps = np.arange(rows)
    if distribution == "all_empty":
        counts = np.zeros(rows, dtype=np.int64)
    elif distribution == "equal" or distribution in VALUES:
        counts = np.full(rows, longest)
    elif distribution == "mixed":
        counts = np.where(steps % 4 == 0, longest, max(1, longest // 8))
    else:
        counts = 1 + steps * (longest - 1) // max(rows - 1, 1)
        if rows == 1:
            counts[:] = longest
        if distribution == "empty_rows":
            counts = np.where(steps % 4 == 0, 0, counts)
    return np.random.default_rng(seed).permutation(counts).astype(np.int64)


OP = SelectionVarlen()

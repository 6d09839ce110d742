"""sliding_window: the last keys up to one's own."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.checker.mutants import softmax
from tests.checker.mutants.banded import broken_band, over, starts
from tests.checker.mutants.mutant import broken_inputs, broken_steps, case, heads_in_turn, right
from tests.checker.mutants.softmax import RIGHT, Steps

OP = "sliding_window"
EDGE = {"B": 2, "T": 200, "HQ": 6, "H": 2, "D": 64, "Dv": 32}
WINDOW = case(OP, "bfloat16", window=64, **EDGE)
EXACT = case(OP, "float32", window=65, **EDGE)
PACKED = case(OP, "bfloat16", "packed", B=5, T=90, HQ=4, H=1, D=32, Dv=32, window=40)
LONGER = case(OP, "bfloat16", B=1, T=1024, HQ=8, H=2, D=64, Dv=64, window=512)


def bounds(q: Tensor, cu_seqlens: Tensor | None, window: int) -> tuple[Tensor, Tensor]:
    t = torch.arange(q.shape[1])
    return torch.maximum(starts(q.shape[1], cu_seqlens), t + 1 - window), t + 1


@right(OP)
def naive(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor | None = None,
    *,
    window: int,
    sm_scale: float,
    max_seqlen: int,
    steps: Steps = RIGHT,
) -> Tensor:
    return over(q, k, v, *bounds(q, cu_seqlens, window), sm_scale, steps)


def sequences_one_late(x):
    late = x.cu_seqlens + 1
    late[0], late[-1] = 0, x.q.shape[1]
    return {"cu_seqlens": late}


def values_by_strides_of_keys(x):
    index = sum(
        torch.arange(size).view(-1, *[1] * (3 - axis)) * x.k.stride(axis)
        for axis, size in enumerate(x.v.shape)
    )
    return {"v": x.v.reshape(-1)[index.clamp(max=x.v.numel() - 1)]}


for case_, bug, diagnosis, change in (
    (WINDOW, ">= for > at the begin", "window-size", lambda x: {"window": x.window + 1}),
    (LONGER, "> for >= at the begin", "window-size", lambda x: {"window": x.window - 1}),
    (LONGER, "the window is not looked at", "window-ignored", lambda x: {"window": 1024}),
    (PACKED, "cu_seqlens is not looked at", "packing-ignored", lambda x: {"cu_seqlens": None}),
    (PACKED, "sequences begin one token late", "sequence-begin", sequences_one_late),
    (EXACT, "scores are not scaled", "scale-missing", lambda x: {"sm_scale": 1.0}),
    (WINDOW, "V is read with K's strides", "v-strides-of-k", values_by_strides_of_keys),
):
    broken_inputs(case_, bug, diagnosis, change)

for case_, bug, diagnosis, edges in (
    (WINDOW, "< for <= in the causal mask", "last-key-lost", lambda lo, hi: (lo, hi - 1)),
    (WINDOW, "the causal mask is one token off", "key-beyond-end", lambda lo, hi: (lo, hi + 1)),
    (LONGER, "causality by the tile", "tile-beyond-end", lambda lo, hi: (lo, (hi + 63) // 64 * 64)),
    (
        LONGER,
        "the first tile is not masked",
        "tile-before-begin",
        lambda lo, hi: (lo.clamp(min=0) // 64 * 64, hi),
    ),
    (
        LONGER,
        "the first tile is skipped unless it is full",
        "first-tile-lost",
        lambda lo, hi: ((lo.clamp(min=0) + 63) // 64 * 64, hi),
    ),
    (EXACT, "the window looks both ways", "window-both-ways", lambda lo, hi: (lo, hi + 64)),
    (WINDOW, "key 0 is never read", "key-zero-lost", lambda lo, hi: (lo.clamp(min=1), hi)),
):
    broken_band(case_, bug, diagnosis, edges)

broken_steps(WINDOW, "masked scores are 0", "masked-scores-zero", softmax.MaskedScoresAreZero())
broken_steps(EXACT, "weights in bfloat16", "weights-rounded", softmax.Bfloat16Weights())
heads_in_turn(WINDOW)

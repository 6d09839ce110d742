"""sliding_window: the last keys up to one's own."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.checker.mutants import softmax
from tests.checker.mutants.banded import over, starts
from tests.checker.mutants.mutant import broken_steps, case, mutant, right
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


@mutant(WINDOW, ">= for > at the begin of the window", "window-size")
def one_key_too_many(q, k, v, *, window, sm_scale, max_seqlen):
    return over(q, k, v, *bounds(q, None, window + 1), sm_scale)


@mutant(LONGER, "> for >= at the begin of the window", "window-size")
def one_key_too_few(q, k, v, *, window, sm_scale, max_seqlen):
    return over(q, k, v, *bounds(q, None, window - 1), sm_scale)


@mutant(LONGER, "the window is not looked at", "window-ignored")
def no_window(q, k, v, *, window, sm_scale, max_seqlen):
    return over(q, k, v, *bounds(q, None, q.shape[1]), sm_scale)


@mutant(WINDOW, "< for <= in the causal mask", "last-key-lost")
def own_key_lost(q, k, v, *, window, sm_scale, max_seqlen):
    lo, hi = bounds(q, None, window)
    return over(q, k, v, lo, hi - 1, sm_scale)


@mutant(WINDOW, "the causal mask is one token off", "key-beyond-end")
def one_key_ahead(q, k, v, *, window, sm_scale, max_seqlen):
    lo, hi = bounds(q, None, window)
    return over(q, k, v, lo, hi + 1, sm_scale)


@mutant(LONGER, "causality by the tile", "tile-beyond-end")
def causal_by_tile(q, k, v, *, window, sm_scale, max_seqlen):
    lo, hi = bounds(q, None, window)
    return over(q, k, v, lo, (hi + 63) // 64 * 64, sm_scale)


@mutant(LONGER, "the first tile is not masked", "tile-before-begin")
def window_from_tile(q, k, v, *, window, sm_scale, max_seqlen):
    lo, hi = bounds(q, None, window)
    return over(q, k, v, lo.clamp(min=0) // 64 * 64, hi, sm_scale)


@mutant(LONGER, "the first tile is skipped unless it is full", "first-tile-lost")
def first_tile_skipped(q, k, v, *, window, sm_scale, max_seqlen):
    lo, hi = bounds(q, None, window)
    return over(q, k, v, (lo.clamp(min=0) + 63) // 64 * 64, hi, sm_scale)


@mutant(EXACT, "the window looks both ways", "window-both-ways")
def window_both_ways(q, k, v, *, window, sm_scale, max_seqlen):
    lo, hi = bounds(q, None, window)
    return over(q, k, v, lo, hi + window - 1, sm_scale)


@mutant(WINDOW, "key 0 is never read", "key-zero-lost")
def first_key_dropped(q, k, v, *, window, sm_scale, max_seqlen):
    lo, hi = bounds(q, None, window)
    return over(q, k, v, lo.clamp(min=1), hi, sm_scale)


@mutant(PACKED, "cu_seqlens is not looked at", "packing-ignored")
def packed_taken_for_one(q, k, v, cu_seqlens, *, window, sm_scale, max_seqlen):
    return over(q, k, v, *bounds(q, None, window), sm_scale)


@mutant(PACKED, "sequences begin one token late", "sequence-begin")
def sequences_one_late(q, k, v, cu_seqlens, *, window, sm_scale, max_seqlen):
    late = cu_seqlens + 1
    late[0], late[-1] = 0, q.shape[1]
    return over(q, k, v, *bounds(q, late, window), sm_scale)


broken_steps(WINDOW, "masked scores are 0", "masked-scores-zero", softmax.MaskedScoresAreZero())


@mutant(WINDOW, "query heads are dealt to KV heads in turn", "heads-dealt-in-turn")
def heads_dealt_in_turn(q, k, v, *, window, sm_scale, max_seqlen):
    order = torch.arange(q.shape[2]).view(-1, k.shape[2]).T.flatten()
    out = torch.empty(*q.shape[:3], v.shape[3], dtype=q.dtype)
    out[:, :, order] = over(q[:, :, order], k, v, *bounds(q, None, window), sm_scale)
    return out


broken_steps(EXACT, "weights in bfloat16", "weights-rounded", softmax.Bfloat16Weights())


@mutant(EXACT, "scores are not scaled", "scale-missing")
def no_scale(q, k, v, *, window, sm_scale, max_seqlen):
    return naive(q, k, v, window=window, sm_scale=1.0, max_seqlen=max_seqlen)


@mutant(WINDOW, "V is read with K's strides", "v-strides-of-k")
def v_with_strides_of_k(q, k, v, *, window, sm_scale, max_seqlen):
    index = sum(
        torch.arange(size).view(-1, *[1] * (3 - axis)) * k.stride(axis)
        for axis, size in enumerate(v.shape)
    )
    wrong = v.reshape(-1)[index.clamp(max=v.numel() - 1)]
    return naive(q, k, wrong, window=window, sm_scale=sm_scale, max_seqlen=max_seqlen)

"""compressed: the compressed keys that are complete."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.checker.mutants import softmax
from tests.checker.mutants.banded import over, starts
from tests.checker.mutants.mutant import broken_steps, case, mutant, right
from tests.checker.mutants.softmax import RIGHT, Steps

OP = "compressed"
SIZES = {"block": 32, "stride": 16}
EDGE = case(OP, "bfloat16", B=2, T=200, HQ=6, H=2, D=64, Dv=32, **SIZES)
EXACT = case(OP, "float32", B=2, T=200, HQ=6, H=2, D=64, Dv=32, **SIZES)
PACKED = case(OP, "bfloat16", "packed", B=5, T=90, HQ=4, H=1, D=32, Dv=32, **SIZES)
MANY = case(OP, "bfloat16", B=1, T=256, HQ=64, H=4, D=128, Dv=128, **SIZES)


def bounds(
    q: Tensor, cu_seqlens: Tensor | None, cu_keys: Tensor | None, block: int, stride: int
) -> tuple[Tensor, Tensor]:
    tokens = torch.arange(q.shape[1]) + 1 - starts(q.shape[1], cu_seqlens)
    first = starts(q.shape[1], cu_seqlens, cu_keys)
    complete = torch.div(tokens - block, stride, rounding_mode="floor") + 1
    return first, first + complete.clamp(min=0)


@right(OP)
def naive(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor | None = None,
    cu_keys: Tensor | None = None,
    *,
    block: int,
    stride: int,
    sm_scale: float,
    max_seqlen: int,
    steps: Steps = RIGHT,
) -> Tensor:
    return over(q, k, v, *bounds(q, cu_seqlens, cu_keys, block, stride), sm_scale, steps)


@mutant(EDGE, "t for t + 1 tokens", "compressed-key-end")
def one_token_late(q, k, v, *, block, stride, sm_scale, max_seqlen):
    return over(q, k, v, *bounds(q, None, None, block + 1, stride), sm_scale)


@mutant(EDGE, "a key is seen at its last token but one", "compressed-key-end")
def one_token_early(q, k, v, *, block, stride, sm_scale, max_seqlen):
    return over(q, k, v, *bounds(q, None, None, block - 1, stride), sm_scale)


@mutant(MANY, "keys are seen from their first token on", "incomplete-keys")
def begun_for_complete(q, k, v, *, block, stride, sm_scale, max_seqlen):
    lo, hi = bounds(q, None, None, 1, stride)
    return over(q, k, v, lo, hi, sm_scale)


@mutant(EDGE, "the stride is taken for the block", "incomplete-keys")
def stride_for_block(q, k, v, *, block, stride, sm_scale, max_seqlen):
    return over(q, k, v, *bounds(q, None, None, stride, stride), sm_scale)


@mutant(EDGE, "no causal mask", "not-causal")
def not_causal(q, k, v, *, block, stride, sm_scale, max_seqlen):
    lo, _ = bounds(q, None, None, block, stride)
    return over(q, k, v, lo, lo + k.shape[1], sm_scale)


@mutant(MANY, "the newest key is left out", "last-key-lost")
def last_key_lost(q, k, v, *, block, stride, sm_scale, max_seqlen):
    lo, hi = bounds(q, None, None, block, stride)
    return over(q, k, v, lo, hi - 1, sm_scale)


@mutant(MANY, "the first key is left out", "first-key-lost")
def first_key_lost(q, k, v, *, block, stride, sm_scale, max_seqlen):
    lo, hi = bounds(q, None, None, block, stride)
    return over(q, k, v, lo + 1, hi, sm_scale)


@mutant(EDGE, "0 / 0 where no key is seen", "not-finite")
def empty_rows_divided(q, k, v, *, block, stride, sm_scale, max_seqlen):
    options = {"block": block, "stride": stride, "sm_scale": sm_scale, "max_seqlen": max_seqlen}
    out = naive(q, k, v, **options)
    out[:, : block - 1] /= 0
    return out


@mutant(EDGE, "softmax of nothing is even", "no-keys-mean")
def empty_rows_mean(q, k, v, *, block, stride, sm_scale, max_seqlen):
    options = {"block": block, "stride": stride, "sm_scale": sm_scale, "max_seqlen": max_seqlen}
    out = naive(q, k, v, **options)
    mean = v.float().mean(1, keepdim=True).repeat_interleave(q.shape[2] // v.shape[2], 2)
    out[:, : block - 1] = mean.to(q.dtype)
    return out


@mutant(PACKED, "keys begin where tokens do", "packing-ignored")
def packed_taken_for_one(q, k, v, cu_seqlens, cu_keys, *, block, stride, sm_scale, max_seqlen):
    return over(q, k, v, *bounds(q, None, None, block, stride), sm_scale)


@mutant(PACKED, "the keys are those of the sequence before", "keys-of-other-sequence")
def keys_of_the_sequence_before(
    q, k, v, cu_seqlens, cu_keys, *, block, stride, sm_scale, max_seqlen
):
    before = torch.cat([cu_keys[:1], cu_keys[:-1]])
    return over(q, k, v, *bounds(q, cu_seqlens, before, block, stride), sm_scale)


@mutant(MANY, "query heads are dealt to KV heads in turn", "heads-dealt-in-turn")
def heads_dealt_in_turn(q, k, v, *, block, stride, sm_scale, max_seqlen):
    order = torch.arange(q.shape[2]).view(-1, k.shape[2]).T.flatten()
    out = torch.empty(*q.shape[:3], v.shape[3], dtype=q.dtype)
    some = bounds(q, None, None, block, stride)
    out[:, :, order] = over(q[:, :, order], k, v, *some, sm_scale)
    return out


broken_steps(
    EXACT, "the output is summed in bfloat16", "weights-rounded", softmax.Bfloat16Weights()
)
broken_steps(EDGE, "exp2 of natural scores", "log2e-missing", softmax.Exp2WithoutLog2e())


@mutant(MANY, "the last head of the last token is not written", "all-zero")
def last_row_zero(q, k, v, *, block, stride, sm_scale, max_seqlen):
    options = {"block": block, "stride": stride, "sm_scale": sm_scale, "max_seqlen": max_seqlen}
    out = naive(q, k, v, **options)
    out[:, -1, -1] = 0
    return out

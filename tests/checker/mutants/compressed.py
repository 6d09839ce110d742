"""compressed: the compressed keys that are complete."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.checker.mutants import softmax
from tests.checker.mutants.banded import broken_band, over, starts
from tests.checker.mutants.mutant import (
    broken_inputs,
    broken_output,
    broken_steps,
    case,
    heads_in_turn,
    right,
    unwritten,
)
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


def keys_of_the_sequence_before(x):
    return {"cu_keys": torch.cat([x.cu_keys[:1], x.cu_keys[:-1]])}


for case_, bug, diagnosis, change in (
    (EDGE, "t for t + 1 tokens", "compressed-key-end", lambda x: {"block": x.block + 1}),
    (EDGE, "a key is seen a token early", "compressed-key-end", lambda x: {"block": x.block - 1}),
    (MANY, "keys are seen from their first token on", "incomplete-keys", lambda x: {"block": 1}),
    (EDGE, "the stride is the block", "incomplete-keys", lambda x: {"block": x.stride}),
    (
        PACKED,
        "keys begin where tokens do",
        "packing-ignored",
        lambda x: {"cu_seqlens": None, "cu_keys": None},
    ),
    (
        PACKED,
        "the keys are those of the sequence before",
        "keys-of-other-sequence",
        keys_of_the_sequence_before,
    ),
):
    broken_inputs(case_, bug, diagnosis, change)

for case_, bug, diagnosis, edges in (
    (EDGE, "no causal mask", "not-causal", lambda lo, hi: (lo, lo + 200)),
    (MANY, "the newest key is left out", "last-key-lost", lambda lo, hi: (lo, hi - 1)),
    (MANY, "the first key is left out", "first-key-lost", lambda lo, hi: (lo + 1, hi)),
):
    broken_band(case_, bug, diagnosis, edges)


def empty_rows_divided(out, x):
    out[:, : x.block - 1] /= 0


def empty_rows_mean(out, x):
    mean = x.v.float().mean(1, keepdim=True).repeat_interleave(3, 2)
    out[:, : x.block - 1] = mean.to(out.dtype)


for case_, bug, diagnosis, spoil in (
    (EDGE, "0 / 0 where no key is seen", "not-finite", empty_rows_divided),
    (EDGE, "softmax of nothing is even", "no-keys-mean", empty_rows_mean),
    (MANY, "the last head of the last token is not written", "all-zero", unwritten(0, -1, -1)),
):
    broken_output(case_, bug, diagnosis, spoil)

broken_steps(
    EXACT, "the output is summed in bfloat16", "weights-rounded", softmax.Bfloat16Weights()
)
broken_steps(EDGE, "exp2 of natural scores", "log2e-missing", softmax.Exp2WithoutLog2e())
heads_in_turn(MANY)

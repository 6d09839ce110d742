"""nsa_attention: three branches and their gates. causal_attention: all keys up to one's own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nsabench.implementations.baselines.nsa_attention import attend
from tests.checker.mutants.banded import broken_band, over, starts
from tests.checker.mutants.mutant import broken_inputs, case, right
from tests.checker.mutants.softmax import RIGHT, Steps

OP, DENSE = "nsa_attention", "causal_attention"
SIZES = {"block": 8, "stride": 4, "block_size": 16, "n_selected": 4, "window": 12}
WHOLE = case(OP, "bfloat16", B=1, T=120, HQ=4, H=2, D=32, Dv=32, **SIZES)
PACKED = case(OP, "bfloat16", "packed", B=3, T=70, HQ=4, H=2, D=32, Dv=32, **SIZES)
CAUSAL = case(DENSE, "bfloat16", B=2, T=100, HQ=4, H=2, D=32, Dv=32)
CAUSAL_PACKED = case(DENSE, "bfloat16", "packed", B=4, T=60, HQ=4, H=2, D=32, Dv=32)


@right(OP)
def whole(
    q: Tensor, k: Tensor, v: Tensor, gates: Tensor, cu_seqlens: Tensor | None = None, **options: Any
) -> Tensor:
    packed = () if cu_seqlens is None else (cu_seqlens,)
    return attend(q, k, v, gates, *packed, **options)


@right(DENSE)
def naive(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor | None = None,
    *,
    sm_scale: float,
    max_seqlen: int,
    steps: Steps = RIGHT,
) -> Tensor:
    first = starts(q.shape[1], cu_seqlens)
    return over(q, k, v, first, torch.arange(q.shape[1]) + 1, sm_scale, steps)


def gates(change):
    return lambda x: {"gates": change(x.gates)}


for case_, bug, diagnosis, change in (
    (
        WHOLE,
        "the branch of chosen blocks is not added",
        "branch-lost",
        gates(lambda x: x * x.new_tensor([1.0, 0.0, 1.0])),
    ),
    (WHOLE, "gates are loaded and not applied", "gates-ignored", gates(torch.ones_like)),
    (WHOLE, "gates go through a sigmoid", "gates-squashed", gates(torch.sigmoid)),
    (
        WHOLE,
        "gates are read from the last to the first",
        "gates-exchanged",
        gates(lambda x: x.flip(-1)),
    ),
    (
        WHOLE,
        "the stride of gates by head is 0",
        "gates-of-head",
        gates(lambda x: x[:, :, :1].expand_as(x)),
    ),
    (WHOLE, "> for >= at the begin", "window-size", lambda x: {"window": x.window - 1}),
    (
        WHOLE,
        "the last of the chosen blocks is not walked",
        "block-count",
        lambda x: {"n_selected": x.n_selected - 1},
    ),
    (WHOLE, "a key is the mean of a stride", "no-overlap", lambda x: {"block": x.stride}),
    (PACKED, "cu_seqlens is not looked at", "packing-ignored", lambda x: {"cu_seqlens": None}),
    (
        CAUSAL_PACKED,
        "cu_seqlens is not looked at",
        "packing-ignored",
        lambda x: {"cu_seqlens": None},
    ),
):
    broken_inputs(case_, bug, diagnosis, change)

for case_, bug, diagnosis, edges in (
    (CAUSAL, "< for <= in the causal mask", "last-key-lost", lambda lo, hi: (lo, hi - 1)),
    (CAUSAL, "the causal mask is one token off", "key-beyond-end", lambda lo, hi: (lo, hi + 1)),
    (CAUSAL, "key 0 is never read", "first-key-lost", lambda lo, hi: (lo + 1, hi)),
    (CAUSAL, "the mask is left out", "not-causal", lambda lo, hi: (lo, lo + 100)),
    (
        CAUSAL,
        "masks tiles of 32, not keys",
        "tile-beyond-end",
        lambda lo, hi: (lo, (hi + 31) // 32 * 32),
    ),
):
    broken_band(case_, bug, diagnosis, edges)

"""nsa_attention: three branches and their gates. causal_attention: all keys up to one's own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nsabench.implementations.baselines.nsa_attention import attend
from tests.checker.mutants.banded import over, starts
from tests.checker.mutants.mutant import case, mutant, right
from tests.checker.mutants.softmax import RIGHT, Steps

OP, DENSE = "nsa_attention", "causal_attention"
SIZES = {"block": 8, "stride": 4, "block_size": 16, "n_selected": 4, "window": 12}
WHOLE = case(OP, "bfloat16", B=1, T=120, HQ=4, H=2, D=32, Dv=32, **SIZES)
PACKED = case(OP, "bfloat16", "packed", B=3, T=70, HQ=4, H=2, D=32, Dv=32, **SIZES)
CAUSAL = case(DENSE, "bfloat16", B=2, T=100, HQ=4, H=2, D=32, Dv=32)
CAUSAL_PACKED = case(DENSE, "bfloat16", "packed", B=4, T=60, HQ=4, H=2, D=32, Dv=32)


@right(OP)
def whole(*tensors: Tensor, **options: Any) -> Tensor:
    return attend(*tensors, **options)


@mutant(WHOLE, "the branch of chosen blocks is not added", "branch-lost")
def selection_lost(q, k, v, gates, **options):
    return attend(q, k, v, gates * gates.new_tensor([1.0, 0.0, 1.0]), **options)


@mutant(WHOLE, "gates are loaded and not applied", "gates-ignored")
def gates_lost(q, k, v, gates, **options):
    return attend(q, k, v, torch.ones_like(gates), **options)


@mutant(WHOLE, "gates are read from the last to the first", "gates-exchanged")
def gates_reversed(q, k, v, gates, **options):
    return attend(q, k, v, gates.flip(-1), **options)


@mutant(WHOLE, "the stride of gates by head is 0", "gates-of-head")
def gates_of_one_head(q, k, v, gates, **options):
    return attend(q, k, v, gates[:, :, :1].expand_as(gates), **options)


@mutant(WHOLE, "> for >= at the begin of the window", "window-size")
def window_short(q, k, v, gates, **options):
    return attend(q, k, v, gates, **options | {"window": options["window"] - 1})


@mutant(WHOLE, "the last of the chosen blocks is not walked", "block-count")
def block_lost(q, k, v, gates, **options):
    return attend(q, k, v, gates, **options | {"n_selected": options["n_selected"] - 1})


@mutant(WHOLE, "a key is the mean of a stride", "no-overlap")
def no_overlap(q, k, v, gates, **options):
    return attend(q, k, v, gates, **options | {"block": options["stride"]})


@mutant(PACKED, "cu_seqlens is not looked at", "packing-ignored")
def one_sequence(q, k, v, gates, cu_seqlens, **options):
    return attend(q, k, v, gates, **options)


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


@mutant(CAUSAL, "< for <= in the causal mask", "last-key-lost")
def own_key_lost_of_all(q, k, v, *, sm_scale, max_seqlen):
    t = torch.arange(q.shape[1])
    return over(q, k, v, torch.zeros_like(t), t, sm_scale)


@mutant(CAUSAL, "the mask is left out", "not-causal")
def no_mask(q, k, v, *, sm_scale, max_seqlen):
    t = torch.arange(q.shape[1])
    return over(q, k, v, torch.zeros_like(t), torch.full_like(t, len(t)), sm_scale)


@mutant(CAUSAL, "masks tiles of 32, not keys", "tile-beyond-end")
def whole_tiles(q, k, v, *, sm_scale, max_seqlen):
    t = torch.arange(q.shape[1])
    end = ((t // 32 + 1) * 32).clamp(max=len(t))
    return over(q, k, v, torch.zeros_like(t), end, sm_scale)


@mutant(CAUSAL_PACKED, "cu_seqlens is not looked at", "packing-ignored")
def one_long_sequence(q, k, v, cu_seqlens, *, sm_scale, max_seqlen):
    t = torch.arange(q.shape[1])
    return over(q, k, v, torch.zeros_like(t), t + 1, sm_scale)

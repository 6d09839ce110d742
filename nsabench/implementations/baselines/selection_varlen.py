"""PyTorch's own attention on packed rows of unequal length."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from nsabench.implementations import torch_attention as _torch
from nsabench.implementations._register import baseline
from nsabench.implementations.baselines.selection_rows import heads_as_queries

_baseline = partial(baseline, "selection_varlen")


def attend_rows(
    attend: _torch.FlashAttention,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor,
    **options: Any,
) -> Tensor:
    """Compute the op by a FlashAttention, the H heads of a row as H queries of one head."""
    rows, heads, width = q.shape
    packed = (q.reshape(rows * heads, 1, width), k.unsqueeze(1), v.unsqueeze(1))
    cu = (_torch.equal_cu_seqlens(heads, rows, q.device), cu_seqlens)
    longest = (heads, options["max_seqlen"])
    return attend(*packed, cu, longest, options["sm_scale"], causal=False).view(q.shape)


@_baseline("flash_varlen")
def flash_varlen(*tensors: Tensor, **options: Any) -> Tensor:
    """The FlashAttention-2 that torch bundles, the H heads of a row as H queries of one head."""
    return attend_rows(_torch.aten_flash, *tensors, **options)


@_baseline("flash_varlen_gqa")
def flash_varlen_gqa(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, **options: Any) -> Tensor:
    """The FlashAttention-2 that torch bundles, with one query of H heads a row."""
    cu = (_torch.equal_cu_seqlens(1, q.shape[0], q.device), cu_seqlens)
    packed, longest = (q, k.unsqueeze(1), v.unsqueeze(1)), (1, options["max_seqlen"])
    return _torch.aten_flash(*packed, cu, longest, options["sm_scale"], causal=False)


@_baseline("packed_sdpa", on_cpu=True, kind="general")
def packed_sdpa(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, **options: Any) -> Tensor:
    """Rows padded to the longest by one gather, then SDPA under a mask."""
    if k.shape[0] == 0:
        return q.new_zeros(*q.shape[:2], v.shape[1])
    lengths = cu_seqlens.diff()
    step = torch.arange(options["max_seqlen"], device=q.device)
    valid = step < lengths.unsqueeze(1)
    index = (cu_seqlens[:-1].unsqueeze(1) + step).clamp_(max=k.shape[0] - 1)
    empty = lengths == 0
    keep = valid | empty.unsqueeze(1)
    out = heads_as_queries(q, k[index], v[index], options["sm_scale"], keep)
    return out.masked_fill_(empty[:, None, None], 0)

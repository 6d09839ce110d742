"""PyTorch's own attention on selection_rows and, packed, on selection_varlen."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from nsabench.implementations import torch_attention as _torch
from nsabench.implementations._register import baseline
from nsabench.implementations.torch_attention import FlashAttention


def gqa(q: Tensor, k: Tensor, v: Tensor, sm_scale: float) -> Tensor:
    out = scaled_dot_product_attention(
        q.unsqueeze(2), k.unsqueeze(1), v.unsqueeze(1), scale=sm_scale, **_torch.share_heads()
    )
    return out.squeeze(2)


def heads_as_queries(
    q: Tensor, k: Tensor, v: Tensor, sm_scale: float, keep: Tensor | None = None
) -> Tensor:
    mask = None if keep is None else keep[:, None, None]
    q, k, v = (x.unsqueeze(1) for x in (q, k, v))
    return scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=sm_scale).squeeze(1)


# Controls wrap the first baseline of an op, so begin with one that runs in every torch.
for _name, _attention in (("sdpa_heads_as_queries", heads_as_queries), ("sdpa_gqa", gqa)):
    baseline("selection_rows", _name, on_cpu=True)(_attention)
    for _backend in _torch.BACKENDS:
        _on_cpu = _backend in _torch.BACKENDS_ON_CPU
        _register = baseline("selection_rows", f"{_name}_{_backend}", on_cpu=_on_cpu)
        _register(_torch.forced(_attention, _backend))


# Weights are rounded to 16 bits: too large an error in distributions where one weight dominates.
@baseline("selection_rows", "bmm_softmax", on_cpu=True, distributions=("dense", "negative_zero"))
def bmm_softmax(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
    scores = torch.bmm(q.float(), k.mT.float()) * sm_scale
    return torch.bmm(torch.softmax(scores, -1).to(v.dtype), v)


def attend_rows(
    attend: FlashAttention, q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, **options: Any
) -> Tensor:
    """Run a FlashAttention in which the H heads of a row are H queries of one head."""
    rows, heads, width = q.shape
    packed = (q.reshape(rows * heads, 1, width), k.unsqueeze(1), v.unsqueeze(1))
    cu = (_torch.equal_cu_seqlens(heads, rows, q.device), cu_seqlens)
    longest = (heads, options["max_seqlen"])
    return attend(*packed, cu, longest, options["sm_scale"], causal=False).view(q.shape)


@baseline("selection_varlen", "flash_varlen")
def flash_varlen(*tensors: Tensor, **options: Any) -> Tensor:
    return attend_rows(_torch.aten_flash, *tensors, **options)


@baseline("selection_varlen", "flash_varlen_gqa")
def flash_varlen_gqa(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, **options: Any) -> Tensor:
    cu = (_torch.equal_cu_seqlens(1, q.shape[0], q.device), cu_seqlens)
    packed, longest = (q, k.unsqueeze(1), v.unsqueeze(1)), (1, options["max_seqlen"])
    return _torch.aten_flash(*packed, cu, longest, options["sm_scale"], causal=False)


@baseline("selection_varlen", "packed_sdpa", on_cpu=True, kind="general")
def packed_sdpa(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, **options: Any) -> Tensor:
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

"""FlashAttention-2, the package of its authors: dense, packed, with a window, against a cache.

It computes no selection: `flash_attn_with_kvcache` takes pages of 256 keys and more, and chosen
blocks are smaller.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nsabench import implementation
from nsabench.implementations.baselines import compressed as _compressed
from nsabench.implementations.baselines.causal_attention import dense
from nsabench.implementations.baselines.decode_branches import of_a_stretch
from nsabench.implementations.baselines.selection_varlen import every
from nsabench.implementations.libraries._calls import function
from nsabench.implementations.torch_attention.flash import check_flash
from nsabench.packages.catalogue import FLASH_ATTN

PLAIN = "flash_attn:flash_attn_func"
VARLEN = "flash_attn:flash_attn_varlen_func"
CACHED = "flash_attn:flash_attn_with_kvcache"
TENSORS = ("q", "k", "v", "softmax_scale", "causal")
PACKED = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")


def causal(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor | None,
    sm_scale: float,
    max_seqlen: int,
    window: int = 0,
) -> Tensor:
    """Causal attention [B,T,HQ,D]; window: keys a query sees, 0 for all. Packed is B = 1."""
    options: dict[str, Any] = {"softmax_scale": sm_scale, "causal": True}
    if window:
        options["window_size"] = (window - 1, 0)
    extra = ("window_size",) if window else ()
    if cu_seqlens is None:
        attend = function(FLASH_ATTN, PLAIN, *TENSORS, *extra)
        check_flash(q, v)
        return attend(q, k, v, **options)
    attend = function(FLASH_ATTN, VARLEN, *TENSORS, *PACKED, *extra)
    check_flash(q, v)
    options |= dict(zip(PACKED, (cu_seqlens, cu_seqlens, max_seqlen, max_seqlen), strict=True))
    return attend(q[0], k[0], v[0], **options).unsqueeze(0)


@dense("flash_attn", package=FLASH_ATTN)
def flash_attn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor | None = None,
    *,
    sm_scale: float,
    max_seqlen: int,
) -> Tensor:
    """`flash_attn_func`, and `flash_attn_varlen_func` where sequences are packed."""
    return causal(q, k, v, cu_seqlens, sm_scale, max_seqlen)


@implementation(
    op="sliding_window", name="flash_attn", role="baseline", devices=("cuda",), package=FLASH_ATTN
)
def flash_attn_window(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor | None = None,
    *,
    window: int,
    sm_scale: float,
    max_seqlen: int,
) -> Tensor:
    """The same with its window."""
    return causal(q, k, v, cu_seqlens, sm_scale, max_seqlen, window)


@implementation(
    op="compressed", name="flash_attn", role="baseline", devices=("cuda",), package=FLASH_ATTN
)
def flash_attn_compressed(
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
) -> Tensor:
    """`flash_attn_func`, the queries of a stride folded into its heads."""
    attend = function(FLASH_ATTN, PLAIN, *TENSORS)
    check_flash(q, v)
    folded = _compressed.fold(q, k, v, cu_seqlens is not None, block, stride)
    out = attend(*folded, softmax_scale=sm_scale, causal=True)
    return _compressed.unfold(out, q)


@implementation(
    op="selection_varlen",
    name="flash_attn",
    role="baseline",
    devices=("cuda",),
    package=FLASH_ATTN,
)
def flash_attn_rows(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, *, sm_scale: float, max_seqlen: int
) -> Tensor:
    """`flash_attn_varlen_func`, the H heads of a row as H queries of one head."""
    attend = function(FLASH_ATTN, VARLEN, *TENSORS, *PACKED)
    check_flash(q, v)
    rows, heads, width = q.shape
    if k.shape[0] == 0:
        return torch.zeros_like(q)
    out = attend(
        q.reshape(rows * heads, 1, width),
        k.unsqueeze(1),
        v.unsqueeze(1),
        cu_seqlens_q=every(heads, rows, q.device),
        cu_seqlens_k=cu_seqlens,
        max_seqlen_q=heads,
        max_seqlen_k=max_seqlen,
        softmax_scale=sm_scale,
        causal=False,
    )
    return out.view(rows, heads, width)


def _cached(q: Tensor, k: Tensor, v: Tensor, sm_scale: float, splits: int) -> Tensor:
    attend = function(FLASH_ATTN, CACHED, "q", "k_cache", "v_cache", "softmax_scale", "num_splits")
    check_flash(q, v)
    keys, values = k.transpose(1, 2), v.transpose(1, 2)
    options = {"softmax_scale": sm_scale, "num_splits": splits}
    return attend(q.unsqueeze(1), keys, values, **options).squeeze(1)


@of_a_stretch("flash_attn", "cuda", package=FLASH_ATTN)
def flash_attn_cached(q: Tensor, k: Tensor, v: Tensor, sm_scale: float) -> Tensor:
    """`flash_attn_with_kvcache`, one query against a cache, in as many splits as it finds best."""
    return _cached(q, k, v, sm_scale, 0)


@of_a_stretch("flash_attn_unsplit", "cuda", package=FLASH_ATTN)
def flash_attn_unsplit(q: Tensor, k: Tensor, v: Tensor, sm_scale: float) -> Tensor:
    """The same, all keys in one program."""
    return _cached(q, k, v, sm_scale, 1)

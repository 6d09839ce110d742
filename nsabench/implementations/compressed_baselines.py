"""PyTorch's and FlashAttention's own ways to attend over compressed keys.

FlashAttention knows no strided causal mask, but need not: the `stride` queries from one key's
completion to the next see the same keys. With those queries as heads (one query of padding in front
and up to stride - 1 behind put the boundaries right), what is left is its causal mask, aligned at
the ends, of ceil((T + 1) / stride) queries over the keys.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from nsabench import Unsupported, implementation
from nsabench.implementations import _band
from nsabench.implementations._flex import flex
from nsabench.implementations.varlen_baselines import every

OP = "compressed"


def _keep(t: int, n: int, block: int, stride: int, device: torch.device) -> Tensor:
    tokens = torch.arange(1, t + 1, device=device).unsqueeze(1)
    return torch.arange(n, device=device) * stride + block <= tokens


_kept = lru_cache(maxsize=2)(_keep)


def _packed_keep(
    cu_seqlens: Tensor, cu_keys: Tensor, t: int, n: int, block: int, stride: int
) -> Tensor:
    at = torch.arange(max(t, n), dtype=torch.int32, device=cu_seqlens.device)
    own, keys_of = (
        torch.searchsorted(cu[1:].contiguous(), at[:size], right=True)
        for cu, size in ((cu_seqlens, t), (cu_keys, n))
    )
    tokens = at[:t] - cu_seqlens[own] + 1
    complete = (at[:n] - cu_keys[keys_of]) * stride + block <= tokens.unsqueeze(1)
    return complete & (own.unsqueeze(1) == keys_of)


@implementation(op=OP, name="masked_sdpa", role="baseline", devices=("cuda", "cpu"))
def masked_sdpa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor | None = None,
    cu_keys: Tensor | None = None,
    *,
    block: int,
    stride: int,
    sm_scale: float,
) -> Tensor:
    """SDPA over all keys under a mask."""
    t, n = q.shape[1], k.shape[1]
    _band.refuse_mask(t, n)
    if cu_seqlens is None or cu_keys is None:
        keep = _kept(t, n, block, stride, q.device)
    else:
        keep = _packed_keep(cu_seqlens, cu_keys, t, n, block, stride)
    return _band.masked_sdpa(q, k, v, keep, sm_scale)


def _fold(q: Tensor, cu_seqlens: Tensor | None, key_heads: int, block: int, stride: int) -> Tensor:
    """[B,T,HQ,D] -> [B,A,H * stride * (HQ/H),D]; query a sees the first a + 1 - block / stride.

    Of A = T // stride + 1 queries and A - block / stride keys that is the causal mask aligned at
    the ends.
    """
    if cu_seqlens is not None:
        raise Unsupported("packed sequences cannot be folded by strides of their own")
    if block % stride:
        raise Unsupported("FlashAttention needs a stride that divides the block")
    b, t, hq, d = q.shape
    steps = t // stride + 1
    q = pad(q, (0, 0, 0, 0, 1, steps * stride - t - 1))
    q = q.view(b, steps, stride, key_heads, hq // key_heads, d).transpose(2, 3)
    return q.reshape(b, steps, stride * hq, d)


def _unfold(out: Tensor, like: Tensor, key_heads: int, stride: int) -> Tensor:
    b, t, hq, d = like.shape
    out = out.view(b, -1, key_heads, stride, hq // key_heads, d).transpose(2, 3)
    return out.reshape(b, -1, hq, d)[:, 1 : t + 1]


@implementation(op=OP, name="flash", role="baseline", devices=("cuda",))
def flash(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor | None = None,
    cu_keys: Tensor | None = None,
    *,
    block: int,
    stride: int,
    sm_scale: float,
) -> Tensor:
    """The FlashAttention-2 that torch bundles, the queries of a stride folded into its heads."""
    _band.check_flash(q, v)
    heads = k.shape[2]
    folded = _fold(q, cu_seqlens, heads, block, stride)
    steps, keys = folded.shape[1], k.shape[1]
    cu = (every(steps, q.shape[0], q.device), every(keys, q.shape[0], q.device))
    fq, fk, fv = (x.flatten(0, 1) for x in (folded, k, v))
    out = _band.aten_flash(fq, fk, fv, cu, (steps, keys), sm_scale)
    return _unfold(out.view_as(folded), q, heads, stride)


@implementation(op=OP, name="flash_attn", role="baseline", devices=("cuda",))
def flash_attn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor | None = None,
    cu_keys: Tensor | None = None,
    *,
    block: int,
    stride: int,
    sm_scale: float,
) -> Tensor:
    """The same with the package of FlashAttention's authors."""
    attend = _band.package_flash("flash_attn_func")
    _band.check_flash(q, v)
    heads = k.shape[2]
    folded = _fold(q, cu_seqlens, heads, block, stride)
    out = attend(folded, k, v, softmax_scale=sm_scale, causal=True)
    return _unfold(out, q, heads, stride)


def _block_mask(
    t: int,
    n: int,
    block: int,
    stride: int,
    device: torch.device,
    packed: tuple[Tensor, Tensor] | None,
) -> Any:
    if packed is None:

        def seen(b: Tensor, h: Tensor, qi: Tensor, ki: Tensor) -> Tensor:
            return ki * stride + block <= qi + 1

    else:
        keep = _packed_keep(*packed, t, n, block, stride)

        def seen(b: Tensor, h: Tensor, qi: Tensor, ki: Tensor) -> Tensor:
            return keep[qi, ki]

    return flex()[1].create_block_mask(seen, None, None, t, n, device=str(device))


_block_mask_of = lru_cache(maxsize=2)(_block_mask)


@implementation(op=OP, name="flex_attention", role="baseline", devices=("cuda",))
def flex_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor | None = None,
    cu_keys: Tensor | None = None,
    *,
    block: int,
    stride: int,
    sm_scale: float,
) -> Tensor:
    """FlexAttention with a block mask."""
    t, n = q.shape[1], k.shape[1]
    _band.refuse_mask(t, n)
    if cu_seqlens is None or cu_keys is None:
        mask = _block_mask_of(t, n, block, stride, q.device, None)
    else:
        mask = _block_mask(t, n, block, stride, q.device, (cu_seqlens, cu_keys))
    return _band.flex_attend(q, k, v, mask, sm_scale)

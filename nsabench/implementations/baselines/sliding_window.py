"""PyTorch's own ways to attend over a sliding window.

Masks and block masks of sequences that are all equally long depend on sizes alone and are made
once; those of packed sequences are made in every call.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nsabench import Unsupported, implementation
from nsabench.implementations.baselines.selection_varlen import every
from nsabench.implementations.torch_attention import flash as _band
from nsabench.implementations.torch_attention.backends import accepts
from nsabench.implementations.torch_attention.flex import band_mask, flex, wants_grad
from nsabench.implementations.torch_attention.memoised import memoised

OP = "sliding_window"


def _keep(t: int, window: int, device: torch.device) -> Tensor:
    position = torch.arange(t, device=device)
    return (position <= position.unsqueeze(1)) & (position > position.unsqueeze(1) - window)


_keep_of = memoised(2)(_keep)


def _tokens(t: int, device: torch.device) -> Tensor:
    return torch.arange(t, dtype=torch.int32, device=device)


@implementation(op=OP, name="masked_sdpa", role="baseline", devices=("cuda", "cpu"), kind="general")
def masked_sdpa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor | None = None,
    *,
    window: int,
    sm_scale: float,
    max_seqlen: int,
) -> Tensor:
    """SDPA over all keys under a mask."""
    t = q.shape[1]
    _band.refuse_mask(t, t)
    keep = _keep_of(t, window, q.device)
    if cu_seqlens is not None:
        sequence = _band.sequence_of(cu_seqlens, _tokens(t, q.device))
        keep = keep & (sequence == sequence.unsqueeze(1))
    return _band.masked_sdpa(q, k, v, keep, sm_scale)


def _packed(q: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    return every(q.shape[1], q.shape[0], q.device) if cu_seqlens is None else cu_seqlens


@implementation(op=OP, name="flash_varlen", role="baseline", devices=("cuda",))
def flash_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor | None = None,
    *,
    window: int,
    sm_scale: float,
    max_seqlen: int,
) -> Tensor:
    """The FlashAttention-2 that torch bundles, packed, with its window."""
    _band.check_flash(q, v)
    cu, longest = _packed(q, cu_seqlens), (max_seqlen, max_seqlen)
    fq, fk, fv = (x.flatten(0, 1) for x in (q, k, v))
    return _band.aten_flash(fq, fk, fv, (cu, cu), longest, sm_scale, window).view_as(q)


@implementation(op=OP, name="flash", role="baseline", devices=("cuda",))
def flash(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor | None = None,
    *,
    window: int,
    sm_scale: float,
    max_seqlen: int,
) -> Tensor:
    """The same without packing."""
    _band.check_flash(q, v)
    if cu_seqlens is not None:
        raise Unsupported("sequences are packed; flash_varlen is the form for them")
    return _band.aten_flash(q, k, v, None, (max_seqlen, max_seqlen), sm_scale, window)


@implementation(op=OP, name="varlen_attn", role="baseline", devices=("cuda",))
def varlen_attn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor | None = None,
    *,
    window: int,
    sm_scale: float,
    max_seqlen: int,
) -> Tensor:
    """The public varlen attention."""
    attend = _band.varlen_attention()
    _band.check_flash(q, v)
    if not accepts(attend, "window_size", "scale"):
        raise Unsupported("this torch's varlen_attn takes no window or no scale")
    cu, longest = _packed(q, cu_seqlens), (max_seqlen, max_seqlen)
    grouped = {"enable_gqa": True} if accepts(attend, "enable_gqa") else {}
    flat = (x.flatten(0, 1) for x in (q, k, v))
    out: Tensor = attend(
        *flat, cu, cu, *longest, scale=sm_scale, window_size=(window - 1, 0), **grouped
    )
    return out.view_as(q)


def _block_mask(t: int, window: int, device: torch.device) -> Any:
    def seen(b: Tensor, h: Tensor, qi: Tensor, ki: Tensor) -> Tensor:
        return (ki <= qi) & (ki > qi - window)

    return flex()[1].create_block_mask(seen, None, None, t, t, device=str(device))


_block_mask_of = memoised(2)(_block_mask)


def _bounds(cu_seqlens: Tensor, t: int, window: int) -> tuple[Tensor, Tensor]:
    """int32 [T]: a query of packed sequences sees the keys from the one up to the other."""
    position = _tokens(t, cu_seqlens.device)
    first = cu_seqlens[_band.sequence_of(cu_seqlens, position)]
    return torch.maximum(first, position - (window - 1)), position + 1


@implementation(
    op=OP,
    name="flex_attention",
    role="baseline",
    devices=("cuda",),
    kind="general",
    compiled_by="triton",
)
def flex_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor | None = None,
    *,
    window: int,
    sm_scale: float,
    max_seqlen: int,
) -> Tensor:
    """FlexAttention with a block mask."""
    t = q.shape[1]
    _band.refuse_mask(t, t)
    if cu_seqlens is None:
        mask = _block_mask_of(t, window, q.device)
    else:
        mask = band_mask(*_bounds(cu_seqlens, t, window), t, backward=wants_grad(q, k, v))
    return _band.flex_attend(q, k, v, mask, sm_scale)

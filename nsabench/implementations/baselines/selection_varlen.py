"""PyTorch's own attention on packed rows of unequal length.

FlashAttention's varlen forward takes the packing as it is, without synchronisation or copies, and
is the baseline to beat. It is called through the aten operator, which every supported torch has,
and through the public `varlen_attn` where there is one.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from nsabench import Unsupported, implementation
from nsabench.implementations.torch_attention.backends import accepts
from nsabench.implementations.torch_attention.flash import (
    aten_flash,
    check_flash,
    refuse_mask,
    varlen_attention,
)
from nsabench.implementations.torch_attention.memoised import memoised


def flash(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu: tuple[Tensor, Tensor],
    longest: tuple[int, int],
    sm_scale: float,
) -> Tensor:
    """FlashAttention over packed sequences: q [total_q,Hq,D], k, v [total_k,Hk,D].

    longest: of the queries and of the keys. Told more keys than a row has, the form with grouped
    heads splits none of them over the device.
    """
    if k.shape[0] == 0:
        return torch.zeros_like(q)
    return aten_flash(q, k, v, cu, longest, sm_scale, causal=False)


@memoised(64)
def every(step: int, rows: int, device: torch.device) -> Tensor:
    """cu_seqlens of `rows` sequences of `step` each, which made in the call is a launch more."""
    return torch.arange(0, (rows + 1) * step, step, dtype=torch.int32, device=device)


@implementation(op="selection_varlen", name="flash_varlen", role="baseline", devices=("cuda",))
def flash_varlen(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, *, sm_scale: float, max_seqlen: int
) -> Tensor:
    """The H heads as H queries of one head."""
    check_flash(q, v)
    rows, heads, width = q.shape
    out = flash(
        q.reshape(rows * heads, 1, width),
        k.unsqueeze(1),
        v.unsqueeze(1),
        (every(heads, rows, q.device), cu_seqlens),
        (heads, max_seqlen),
        sm_scale,
    )
    return out.view(rows, heads, width)


@implementation(op="selection_varlen", name="flash_varlen_gqa", role="baseline", devices=("cuda",))
def flash_varlen_gqa(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, *, sm_scale: float, max_seqlen: int
) -> Tensor:
    """One query of H heads a row over one K/V head."""
    check_flash(q, v)
    cu = (every(1, q.shape[0], q.device), cu_seqlens)
    return flash(q, k.unsqueeze(1), v.unsqueeze(1), cu, (1, max_seqlen), sm_scale)


@implementation(op="selection_varlen", name="varlen_attn", role="baseline", devices=("cuda",))
def varlen_attn(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, *, sm_scale: float, max_seqlen: int
) -> Tensor:
    """The public API, the H heads as H queries of one head."""
    check_flash(q, v)
    attend = varlen_attention()
    takes_scale = accepts(attend, "scale")
    rows, heads, width = q.shape
    if k.shape[0] == 0:
        return torch.zeros_like(q)
    scaled = {"scale": sm_scale} if takes_scale else {}
    if not takes_scale and abs(sm_scale * width**0.5 - 1) > 1e-6:
        raise Unsupported("this torch's varlen_attn has the scale 1/sqrt(D) built in")
    out: Tensor = attend(
        q.reshape(rows * heads, 1, width),
        k.unsqueeze(1),
        v.unsqueeze(1),
        every(heads, rows, q.device),
        cu_seqlens,
        heads,
        max_seqlen,
        **scaled,
    )
    return out.view(rows, heads, width)


@implementation(
    op="selection_varlen",
    name="masked_sdpa",
    role="baseline",
    devices=("cuda", "cpu"),
    kind="general",
)
def masked_sdpa(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, *, sm_scale: float, max_seqlen: int
) -> Tensor:
    """Every row over all packed keys, those of the other rows masked out."""
    rows, total = q.shape[0], k.shape[0]
    refuse_mask(rows, total)
    if total == 0:
        return q.new_zeros(*q.shape[:2], v.shape[1])
    key = torch.arange(total, device=q.device)
    keep = (key >= cu_seqlens[:-1, None]) & (key < cu_seqlens[1:, None])
    empty = cu_seqlens.diff() == 0
    heads = q.shape[1]
    out = scaled_dot_product_attention(
        q.transpose(0, 1).unsqueeze(0),
        k.expand(1, heads, -1, -1),
        v.expand(1, heads, -1, -1),
        attn_mask=keep | empty.unsqueeze(1),  # expanded, it would be written once a head
        scale=sm_scale,
    )
    return out.squeeze(0).transpose(0, 1).masked_fill(empty[:, None, None], 0)


@implementation(
    op="selection_varlen",
    name="packed_sdpa",
    role="baseline",
    devices=("cuda", "cpu"),
    kind="general",
)
def packed_sdpa(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, *, sm_scale: float, max_seqlen: int
) -> Tensor:
    """Rows padded to the longest by one gather on the device, then SDPA under a mask."""
    lengths = cu_seqlens.diff()
    step = torch.arange(max_seqlen, device=q.device)
    valid = step < lengths.unsqueeze(1)
    index = (cu_seqlens[:-1].unsqueeze(1) + step).clamp_(max=max(k.shape[0] - 1, 0))
    if k.shape[0] == 0:
        return q.new_zeros(*q.shape[:2], v.shape[1])
    empty = lengths == 0
    out = scaled_dot_product_attention(
        q.unsqueeze(1),
        k[index].unsqueeze(1),
        v[index].unsqueeze(1),
        attn_mask=(valid | empty.unsqueeze(1))[:, None, None],
        scale=sm_scale,
    )
    return out.squeeze(1).masked_fill_(empty[:, None, None], 0)

"""PyTorch's and FlashAttention's own ways to attend over compressed keys.

FlashAttention knows no strided causal mask, but need not: the `stride` queries from one key's
completion to the next see the same keys. With those queries as heads (one query of padding in front
and up to stride - 1 behind put the boundaries right), what is left is its causal mask, aligned at
the ends, of T // stride + 1 queries over the T // stride + 1 - block / stride keys. No query moves
for that: head s * HQ + i is head i of query s, and meets head s * H + i // (HQ / H) of K and V that
are repeated `stride` times, which are short.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from nsabench import Unsupported, implementation
from nsabench.implementations.baselines.selection_varlen import every
from nsabench.implementations.torch_attention import flash as _band
from nsabench.implementations.torch_attention.flex import band_mask, flex, wants_grad
from nsabench.implementations.torch_attention.memoised import memoised

OP = "compressed"


def _keep(t: int, n: int, block: int, stride: int, device: torch.device) -> Tensor:
    tokens = torch.arange(1, t + 1, device=device).unsqueeze(1)
    return torch.arange(n, device=device) * stride + block <= tokens


_keep_of = memoised(2)(_keep)


def _packed_keep(
    cu_seqlens: Tensor, cu_keys: Tensor, t: int, n: int, block: int, stride: int
) -> Tensor:
    position = torch.arange(max(t, n), dtype=torch.int32, device=cu_seqlens.device)
    own, keys_of = (
        _band.sequence_of(cu_seqlens, position[:t]),
        _band.sequence_of(cu_keys, position[:n]),
    )
    tokens = position[:t] - cu_seqlens[own] + 1
    complete = (position[:n] - cu_keys[keys_of]) * stride + block <= tokens.unsqueeze(1)
    return complete & (own.unsqueeze(1) == keys_of)


@implementation(op=OP, name="masked_sdpa", role="baseline", devices=("cuda", "cpu"), kind="general")
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
    max_seqlen: int,
) -> Tensor:
    """SDPA over all keys under a mask."""
    t, n = q.shape[1], k.shape[1]
    _band.refuse_mask(t, n)
    if cu_seqlens is None or cu_keys is None:
        keep = _keep_of(t, n, block, stride, q.device)
    else:
        keep = _packed_keep(cu_seqlens, cu_keys, t, n, block, stride)
    return _band.masked_sdpa(q, k, v, keep, sm_scale)


def _check_fold(block: int, stride: int) -> None:
    if block % stride:
        raise Unsupported("FlashAttention needs a stride that divides the block")


def fold(
    q: Tensor, k: Tensor, v: Tensor, packed: bool, block: int, stride: int
) -> tuple[Tensor, Tensor, Tensor]:
    """q as [B,T // stride + 1,stride * HQ,D], K and V with as many heads for each."""
    if packed:
        raise Unsupported("sequences are packed; flash_varlen is the form for them")
    _check_fold(block, stride)
    b, t, hq, d = q.shape
    steps = t // stride + 1
    q = pad(q, (0, 0, 0, 0, 1, steps * stride - t - 1)).view(b, steps, stride * hq, d)
    return q, k.repeat(1, 1, stride, 1), v.repeat(1, 1, stride, 1)


def unfold(out: Tensor, like: Tensor) -> Tensor:
    b, t, hq, d = like.shape
    return out.view(b, -1, hq, d)[:, 1 : t + 1]


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
    max_seqlen: int,
) -> Tensor:
    """The FlashAttention-2 that torch bundles, the queries of a stride folded into its heads."""
    _band.check_flash(q, v)
    fq, fk, fv = fold(q, k, v, cu_seqlens is not None, block, stride)
    longest = (fq.shape[1], fk.shape[1])
    return unfold(_band.aten_flash(fq, fk, fv, None, longest, sm_scale), q)


def _places(cu_seqlens: Tensor, total: int, stride: int) -> tuple[Tensor, Tensor, Tensor]:
    """cu_seqlens of the folded rows; the place of each token in them; a token for each place.

    A sequence's rows are its length // stride + 1 and, in front, where that sees no key and moves
    nothing, at most one more. So all begin where the packing alone says, and the last ends at
    a number that the host knows: no row is left over, of which FlashAttention would write nothing.
    """
    sequences = cu_seqlens.numel() - 1
    cu_rows = cu_seqlens // stride + every(1, sequences, cu_seqlens.device)
    lengths = cu_seqlens.diff()
    first = cu_rows[1:] - 1 - lengths // stride
    own = torch.arange(total, device=cu_seqlens.device)
    shift = first * stride + 1 - cu_seqlens[:-1]
    place = own + torch.repeat_interleave(shift, lengths, output_size=total)
    token = own.new_zeros((total // stride + sequences) * stride).index_copy_(0, place, own)
    return cu_rows, place, token


class _Taken(torch.autograd.Function):  # type: ignore[misc]
    """x[index]. The gradient is a copy, not the sum with atomics of `index_select`: it is read at
    `back`, where other places have none, or put to `index`, which then names no place twice."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, back: Tensor | None) -> Tensor:
        ctx.shape = x.shape
        ctx.save_for_backward(index, back)
        return x.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        index, back = ctx.saved_tensors
        if back is None:
            return grad.new_zeros(ctx.shape).index_copy_(0, index, grad), None, None
        return grad.index_select(0, back), None, None


@implementation(op=OP, name="flash_varlen", role="baseline", devices=("cuda",))
def flash_varlen(
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
    """The same of packed sequences: each is folded for itself, by a gather."""
    _band.check_flash(q, v)
    if cu_seqlens is None or cu_keys is None:
        raise Unsupported("sequences are not packed; flash is the form for them")
    _check_fold(block, stride)
    total, heads, width = q.shape[1:]
    if k.shape[1] == 0:
        return q.new_zeros(q.shape)
    cu_rows, place, token = _places(cu_seqlens, total, stride)
    longest = (max_seqlen // stride + 2, max(0, (max_seqlen - block) // stride + 1))
    fq = _Taken.apply(q[0], token, place).view(-1, stride * heads, width)
    fk, fv = (x[0].repeat(1, stride, 1) for x in (k, v))
    out = _band.aten_flash(fq, fk, fv, (cu_rows, cu_keys), longest, sm_scale)
    unfolded: Tensor = _Taken.apply(out.view(-1, heads, width), place, None)
    return unfolded.unsqueeze(0)


def _block_mask(t: int, n: int, block: int, stride: int, device: torch.device) -> Any:
    def seen(b: Tensor, h: Tensor, qi: Tensor, ki: Tensor) -> Tensor:
        return ki * stride + block <= qi + 1

    return flex()[1].create_block_mask(seen, None, None, t, n, device=str(device))


_block_mask_of = memoised(2)(_block_mask)


def _bounds(
    cu_seqlens: Tensor, cu_keys: Tensor, t: int, block: int, stride: int
) -> tuple[Tensor, Tensor]:
    """int32 [T]: a query of packed sequences sees the keys from the one up to the other."""
    query = torch.arange(t, dtype=torch.int32, device=cu_seqlens.device)
    own = _band.sequence_of(cu_seqlens, query)
    lo = cu_keys[own]
    complete = (query - cu_seqlens[own] + (1 + stride - block)) // stride
    return lo, lo + complete.clamp_(min=0)


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
    cu_keys: Tensor | None = None,
    *,
    block: int,
    stride: int,
    sm_scale: float,
    max_seqlen: int,
) -> Tensor:
    """FlexAttention with a block mask."""
    t, n = q.shape[1], k.shape[1]
    if cu_seqlens is None or cu_keys is None:
        _band.refuse_mask(t, n)
        mask = _block_mask_of(t, n, block, stride, q.device)
    else:
        lo, hi = _bounds(cu_seqlens, cu_keys, t, block, stride)
        mask = band_mask(lo, hi, n, backward=wants_grad(q, k, v))
    return _band.flex_attend(q, k, v, mask, sm_scale)

"""PyTorch's and FlashAttention's own ways to attend over compressed keys.

FlashAttention has no strided causal mask, but does not need one. The `stride` queries between the
completion of one key and the next see the same keys. If these queries are heads, its causal mask
is enough: T // stride + 1 queries over T // stride + 1 - block / stride keys, aligned at the ends.
One query of padding in front and up to stride - 1 behind put the boundaries right. No query moves
for that: head s * HQ + i is head i of query s. It meets head s * H + i // (HQ / H) of K and V
that are repeated `stride` times, which are short.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from nsabench import Unsupported
from nsabench.implementations import torch_attention as _torch
from nsabench.implementations._register import baseline

_baseline = partial(baseline, "compressed")


@_torch.memoised(2)
def _keep(t: int, n: int, block: int, stride: int, device: torch.device) -> Tensor:
    tokens = torch.arange(1, t + 1, device=device).unsqueeze(1)
    return torch.arange(n, device=device) * stride + block <= tokens


def _packed_keep(packing: tuple[Tensor, ...], t: int, n: int, block: int, stride: int) -> Tensor:
    cu_seqlens, cu_keys = packing
    position = torch.arange(max(t, n), dtype=torch.int32, device=cu_seqlens.device)
    own = _torch.sequence_of(cu_seqlens, position[:t])
    keys_of = _torch.sequence_of(cu_keys, position[:n])
    tokens = position[:t] - cu_seqlens[own] + 1
    complete = (position[:n] - cu_keys[keys_of]) * stride + block <= tokens.unsqueeze(1)
    return complete & (own.unsqueeze(1) == keys_of)


@_baseline("masked_sdpa", on_cpu=True, kind="general")
def masked_sdpa(q: Tensor, k: Tensor, v: Tensor, *packing: Tensor, **options: Any) -> Tensor:
    """SDPA over all keys under a mask."""
    t, n = q.shape[1], k.shape[1]
    _torch.refuse_mask(t, n)
    block, stride = options["block"], options["stride"]
    if packing:
        keep = _packed_keep(packing, t, n, block, stride)
    else:
        keep = _keep(t, n, block, stride, q.device)
    return _torch.masked_sdpa(q, k, v, keep, options["sm_scale"])


def _refuse_stride(block: int, stride: int) -> None:
    if block % stride:
        raise Unsupported("FlashAttention needs a stride that divides the block")


def fold(
    q: Tensor, k: Tensor, v: Tensor, packed: bool, block: int, stride: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return q as [B,T // stride + 1,stride * HQ,D], and K and V with as many heads for each."""
    if packed:
        raise Unsupported("sequences are packed; flash_varlen is the form for them")
    _refuse_stride(block, stride)
    b, t, hq, d = q.shape
    steps = t // stride + 1
    q = pad(q, (0, 0, 0, 0, 1, steps * stride - t - 1)).view(b, steps, stride * hq, d)
    return q, k.repeat(1, 1, stride, 1), v.repeat(1, 1, stride, 1)


def unfold(out: Tensor, like: Tensor) -> Tensor:
    b, t, hq, d = like.shape
    return out.view(b, -1, hq, d)[:, 1 : t + 1]


@_baseline("flash")
def flash(q: Tensor, k: Tensor, v: Tensor, *packing: Tensor, **options: Any) -> Tensor:
    """The FlashAttention-2 that torch bundles, the queries of a stride folded into its heads."""
    _torch.check_flash(q, v)
    folded = fold(q, k, v, bool(packing), options["block"], options["stride"])
    longest = (folded[0].shape[1], folded[1].shape[1])
    return unfold(_torch.aten_flash(*folded, None, longest, options["sm_scale"]), q)


def _places(cu_seqlens: Tensor, total: int, stride: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return cu_seqlens of the folded rows, the place of each token in them, and a token for each
    place.

    A sequence has length // stride + 1 rows, and in front at most one more, which sees no key and
    moves nothing. So all begin where the packing alone tells, and the last ends at a number that
    the host knows. No row is left over, of which FlashAttention would write nothing.
    """
    sequences = cu_seqlens.numel() - 1
    cu_rows = cu_seqlens // stride + _torch.every(1, sequences, cu_seqlens.device)
    lengths = cu_seqlens.diff()
    first = cu_rows[1:] - 1 - lengths // stride
    own = torch.arange(total, device=cu_seqlens.device)
    shift = first * stride + 1 - cu_seqlens[:-1]
    place = own + torch.repeat_interleave(shift, lengths, output_size=total)
    token = own.new_zeros((total // stride + sequences) * stride).index_copy_(0, place, own)
    return cu_rows, place, token


class _Taken(torch.autograd.Function):  # type: ignore[misc]
    """x[index]. The gradient is a copy, not the sum with atomics of `index_select`.

    It is read at `back`, where other places have none, or put to `index`, which then names no place
    twice.
    """

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


@_baseline("flash_varlen")
def flash_varlen(q: Tensor, k: Tensor, v: Tensor, *packing: Tensor, **options: Any) -> Tensor:
    """FlashAttention-2 on packed sequences, each folded by itself, by a gather."""
    _torch.check_flash(q, v)
    if not packing:
        raise Unsupported("sequences are not packed; flash is the form for them")
    block, stride, longest = options["block"], options["stride"], options["max_seqlen"]
    _refuse_stride(block, stride)
    cu_seqlens, cu_keys = packing
    total, heads, width = q.shape[1:]
    if k.shape[1] == 0:
        return q.new_zeros(q.shape)
    cu_rows, place, token = _places(cu_seqlens, total, stride)
    rows_and_keys = (longest // stride + 2, max(0, (longest - block) // stride + 1))
    fq = _Taken.apply(q[0], token, place).view(-1, stride * heads, width)
    fk, fv = (x[0].repeat(1, stride, 1) for x in (k, v))
    cu = (cu_rows, cu_keys)
    out = _torch.aten_flash(fq, fk, fv, cu, rows_and_keys, options["sm_scale"])
    unfolded: Tensor = _Taken.apply(out.view(-1, heads, width), place, None)
    return unfolded.unsqueeze(0)


@_torch.memoised(2)
def _block_mask(t: int, n: int, block: int, stride: int, device: torch.device) -> Any:
    def seen(b: Tensor, h: Tensor, qi: Tensor, ki: Tensor) -> Tensor:
        return ki * stride + block <= qi + 1

    return _torch.create_mask(seen, t, n, device)


def _bounds(packing: tuple[Tensor, ...], t: int, block: int, stride: int) -> tuple[Tensor, Tensor]:
    """Return the keys that queries of packed sequences see: the first and the end, int32 [T]."""
    cu_seqlens, cu_keys = packing
    query = torch.arange(t, dtype=torch.int32, device=cu_seqlens.device)
    own = _torch.sequence_of(cu_seqlens, query)
    lo = cu_keys[own]
    complete = (query - cu_seqlens[own] + (1 + stride - block)) // stride
    return lo, lo + complete.clamp_(min=0)


@_baseline("flex_attention", kind="general", compiled_by="triton")
def flex_attention(q: Tensor, k: Tensor, v: Tensor, *packing: Tensor, **options: Any) -> Tensor:
    """FlexAttention with a block mask."""
    t, n = q.shape[1], k.shape[1]
    block, stride = options["block"], options["stride"]
    if packing:
        bounds = _bounds(packing, t, block, stride)
        mask = _torch.band_mask(*bounds, n, backward=_torch.wants_grad(q, k, v))
    else:
        _torch.refuse_mask(t, n)
        mask = _block_mask(t, n, block, stride, q.device)
    return _torch.flex_attend(q, k, v, mask, options["sm_scale"])

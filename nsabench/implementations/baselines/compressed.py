"""FlashAttention over compressed keys, which it has no strided causal mask for.

All `stride` queries between two completed keys see the same keys, so they become heads of one
query. T // stride + 1 such queries see T // stride + 1 - block / stride keys, causal and aligned at
the ends, after one query of padding in front. Head s * HQ + i is head i of query s; K and V are
repeated `stride` times to match.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from nsabench import Unsupported
from nsabench.implementations import torch_attention as _torch
from nsabench.implementations._register import baseline


def _refuse_stride(block: int, stride: int) -> None:
    if block % stride:
        raise Unsupported("FlashAttention needs a stride that divides the block")


def attend_folded(
    attend: _torch.FlashAttention,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *packing: Tensor,
    **options: Any,
) -> Tensor:
    """Compute the op by a FlashAttention, with the queries of a stride folded into heads."""
    if packing:
        raise Unsupported("sequences are packed; use flash_varlen")
    _refuse_stride(options["block"], options["stride"])
    b, t, hq, d = q.shape
    stride = options["stride"]
    steps = t // stride + 1
    folded = pad(q, (0, 0, 0, 0, 1, steps * stride - t - 1)).view(b, steps, stride * hq, d)
    keys, values = (x.repeat(1, 1, stride, 1) for x in (k, v))
    out = attend(folded, keys, values, None, (steps, keys.shape[1]), options["sm_scale"])
    return out.view(b, -1, hq, d)[:, 1 : t + 1]


@baseline("compressed", "flash")
def flash(*tensors: Tensor, **options: Any) -> Tensor:
    """The FlashAttention-2 that torch bundles, with the queries of a stride folded into heads."""
    return attend_folded(_torch.aten_flash, *tensors, **options)


def _fold_places(cu_seqlens: Tensor, total: int, stride: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return cu_seqlens of the folded rows, the place of each token, and the token of each place.

    A sequence has length // stride + 1 rows, and at most one more in front, which sees no key. So
    the total follows from sizes that the host knows, and every row is written by FlashAttention.
    """
    sequences = cu_seqlens.numel() - 1
    cu_rows = cu_seqlens // stride + _torch.equal_cu_seqlens(1, sequences, cu_seqlens.device)
    lengths = cu_seqlens.diff()
    first = cu_rows[1:] - 1 - lengths // stride
    own = torch.arange(total, device=cu_seqlens.device)
    shift = first * stride + 1 - cu_seqlens[:-1]
    place = own + torch.repeat_interleave(shift, lengths, output_size=total)
    token = own.new_zeros((total // stride + sequences) * stride).index_copy_(0, place, own)
    return cu_rows, place, token


class _Gather(torch.autograd.Function):  # type: ignore[misc]
    """Gather x[index] with a gradient that is copied, not summed by atomics.

    The gradient is read at `back`, or scattered to `index` if each index occurs once.
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


@baseline("compressed", "flash_varlen")
def flash_varlen(q: Tensor, k: Tensor, v: Tensor, *packing: Tensor, **options: Any) -> Tensor:
    """The FlashAttention-2 that torch bundles, with each packed sequence folded by a gather."""
    if not packing:
        raise Unsupported("sequences are not packed; use flash")
    block, stride, longest = options["block"], options["stride"], options["max_seqlen"]
    _refuse_stride(block, stride)
    cu_seqlens, cu_keys = packing
    total, heads, width = q.shape[1:]
    if k.shape[1] == 0:
        return q.new_zeros(q.shape)
    cu_rows, place, token = _fold_places(cu_seqlens, total, stride)
    rows_and_keys = (longest // stride + 2, max(0, (longest - block) // stride + 1))
    fq = _Gather.apply(q[0], token, place).view(-1, stride * heads, width)
    fk, fv = (x[0].repeat(1, stride, 1) for x in (k, v))
    cu = (cu_rows, cu_keys)
    out = _torch.aten_flash(fq, fk, fv, cu, rows_and_keys, options["sm_scale"])
    unfolded: Tensor = _Gather.apply(out.view(-1, heads, width), place, None)
    return unfolded.unsqueeze(0)

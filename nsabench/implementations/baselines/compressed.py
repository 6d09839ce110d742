"""FlashAttention over compressed keys, which it has no strided causal mask for.

All `stride` queries between two completed keys see the same keys, so they become heads of one
query. T // stride + 1 such queries see T // stride + 1 - block / stride keys, causal and aligned at
the ends, after one query of padding in front. Head s * HQ + i is head i of query s; K and V are
repeated `stride` times to match.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn.functional import pad

from nsabench import Unsupported
from nsabench.implementations import torch_attention as _torch
from nsabench.implementations._register import baseline


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
        raise Unsupported("it takes no packed sequences")
    b, t, hq, d = q.shape
    stride = options["stride"]
    if options["block"] % stride:
        raise Unsupported("FlashAttention needs a stride that divides the block")
    steps = t // stride + 1
    folded = pad(q, (0, 0, 0, 0, 1, steps * stride - t - 1)).view(b, steps, stride * hq, d)
    keys, values = (x.repeat(1, 1, stride, 1) for x in (k, v))
    out = attend(folded, keys, values, None, (steps, keys.shape[1]), options["sm_scale"])
    return out.view(b, -1, hq, d)[:, 1 : t + 1]


@baseline("compressed", "flash")
def flash(*tensors: Tensor, **options: Any) -> Tensor:
    """The FlashAttention-2 that torch bundles, with the queries of a stride folded into heads."""
    return attend_folded(_torch.aten_flash, *tensors, **options)

"""The fallback: torch operations pack the selected keys, then PyTorch's own attention runs."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch.nn.functional import scaled_dot_product_attention

from ..launch.checks import (
    DTYPES,
    check_first_derivative,
    check_transforms,
    check_whole,
    softmax_scale,
)
from ..launch.mode import traced
from ..selection.ranges.spans import check_ranges, disjoint_spans

FLOATS = (*DTYPES, torch.float64)


def packed_sdpa(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    ranges: torch.Tensor,
    *,
    sm_scale: float | None = None,
    selected_len: int | None = None,
) -> torch.Tensor:
    """Compute ``selection_ranges`` by torch operations, differentiably, on any device.

    Args:
        q, k, v, ranges, sm_scale: as ``selection_ranges``; also float64, and any head dim.
        selected_len: upper bound of the keys that a row selects. This many keys are copied for each
            row, so a row that selects more is an error, found on the device. None: S_kv.

    Returns:
        out [B, S, G, h, Dv], contiguous; a row that selects nothing gives 0 and zero gradients.

    Raises:
        TypeError, ValueError: inputs do not fit together, as for ``selection_ranges``.
        RuntimeError: a row selects more than ``selected_len`` keys (on a GPU, an assertion on the
            device fails), or torch.func transforms an input.
    """
    _check(q, k, v)
    softmax_scale("packed_sdpa", q, sm_scale)
    ranges = check_ranges(q, k, v, ranges)
    b, s, g, h = q.shape[:4]
    s_kv, dv = k.shape[2], v.shape[3]
    bound = s_kv if selected_len is None else selected_len
    check_whole("packed_sdpa", "selected_len", bound, 0)
    width = min(max(bound, 1), s_kv)
    if width == 0 or ranges.shape[3] == 0 or q.numel() == 0:
        # Sums over no element keep the inputs in the graph, and are 0 also if an input is inf.
        return q.new_zeros((b, s, g, h, dv)) + sum(x[:0].sum() for x in (q, k, v))
    rows = b * s * g
    start, before = disjoint_spans(ranges, s_kv)
    start, before = start.view(rows, -1), before.view(rows, -1)
    count = before[:, -1:]
    if selected_len is not None:
        torch._assert_async(
            # ``bound`` alone may not fit in int32.
            (count <= min(bound, s_kv)).all(),
            f"packed_sdpa: a row selects more keys than selected_len={bound}, which must be an "
            "upper bound; leave it out if you know no bound",
        )
    step = torch.arange(width, dtype=torch.int32, device=q.device).expand(rows, width).contiguous()
    span = torch.searchsorted(before[:, 1:].contiguous(), step, right=True)
    span = span.clamp_(max=start.shape[1] - 1)
    key = (start.gather(1, span) + step - before.gather(1, span)).clamp_(0, s_kv - 1)
    first = torch.arange(b * g, device=q.device).view(b, 1, g) * s_kv
    index = (first.expand(b, s, g).reshape(rows, 1) + key).flatten()
    # A row that selects no key attends to one key here, since a mask without a key would give NaN,
    # also in the gradients. Its result is set to 0 below.
    mask, empty = step < count.clamp(min=1), count == 0
    with _no_autocast(q):
        out = _attend(q, k, v, index, mask, empty, (rows, width), sm_scale)
    out = out.view(b, s, g, h, dv).contiguous()
    if out.requires_grad and not traced(q):
        # Refuse a second derivative, which only some of torch's attention kernels have.
        out.register_hook(_once)
    return out


def _once(_grad: torch.Tensor) -> None:
    check_first_derivative("selection_attention")


def _check(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    check_transforms("packed_sdpa", q, k, v)
    if q.dtype not in FLOATS or k.dtype != q.dtype or v.dtype != q.dtype:
        raise TypeError(
            "packed_sdpa: q, k and v must share one dtype of float16, bfloat16, float32, float64; "
            f"got {q.dtype}, {k.dtype}, {v.dtype}"
        )
    if not q.device == k.device == v.device:
        raise ValueError(
            f"packed_sdpa: q, k and v must be on one device; got {q.device}, {k.device}, {v.device}"
        )


def _no_autocast(q: torch.Tensor) -> AbstractContextManager[None]:
    """Switch autocast off, so that results have the dtype of q, as the kernel's results do."""
    kind = q.device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()


def _attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    index: torch.Tensor,
    mask: torch.Tensor,
    empty: torch.Tensor,
    size: tuple[int, int],
    sm_scale: float | None,
) -> torch.Tensor:
    """Attend with rows of h queries to ``width`` keys; index [rows * width], mask [rows, width]."""
    (rows, width), (h, d), dv = size, q.shape[3:], v.shape[3]
    out = scaled_dot_product_attention(
        # Queries of empty rows become 0. The backward recomputes weights from float32 logits and
        # LSEs. If these are large, rounding can make a weight infinite, and infinity times 0 is
        # NaN.
        q.reshape(rows, h, d).masked_fill(empty.unsqueeze(-1), 0.0).unsqueeze(1),
        _take(k.reshape(-1, d), index).view(rows, 1, width, d),
        _take(v.reshape(-1, dv), index).view(rows, 1, width, dv),
        attn_mask=mask.view(rows, 1, 1, width),
        scale=sm_scale,
    )
    return out.reshape(rows, h, dv).masked_fill(empty.unsqueeze(-1), 0.0)


def _take(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Return rows ``index`` of x, from a float32 copy if a gradient is needed.

    torch adds up the gradients of a row in the dtype of x. A sum in bfloat16 may be inaccurate.
    """
    if torch.is_grad_enabled() and x.requires_grad and x.element_size() < 4:
        return x.float().index_select(0, index).to(x.dtype)
    return x.index_select(0, index)

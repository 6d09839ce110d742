"""PyTorch's own attention on spans of a shared K/V.

`masked_sdpa` and `flex_attention` attend to all keys under a mask. The others first gather the
selected keys, on the device and vectorised, sized by the `selected_len` that the caller knows.
`packed_sdpa_unmasked` reads two numbers back on the host.
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
from nsabench.implementations.baselines.selection_rows import heads_as_queries
from nsabench.implementations.torch_attention import MAX_MASK_ELEMENTS, TILE, wants_grad

MAX_GATHERED_BYTES = 32 << 30

# Sorted, disjoint spans: their starts [R,n], and the number of keys before each and in all [R,n+1].
Spans = tuple[Tensor, Tensor]

_baseline = partial(baseline, "selection_ranges", kind="general")


def union_mask(ranges: Tensor, s_kv: int) -> Tensor:
    """Return the keys that some span [..., n, 2] holds: bool [..., s_kv]."""
    # Starts and ends are counted.
    start = ranges[..., 0].clamp(0, s_kv)
    end = torch.maximum(ranges[..., 1].clamp(0, s_kv), start)
    edges = torch.zeros(*ranges.shape[:-2], s_kv + 1, dtype=torch.int32, device=ranges.device)
    one = torch.ones((), dtype=torch.int32, device=ranges.device).expand(start.shape)
    edges.scatter_add_(-1, start.long(), one).scatter_add_(-1, end.long(), -one)
    return edges[..., :-1].cumsum(-1, dtype=torch.int32) > 0


def disjoint(ranges: Tensor, s_kv: int) -> Spans:
    """Return spans of the same union."""
    spans = ranges.flatten(0, -3).clamp(0, s_kv)
    start, order = spans[..., 0].sort(dim=-1)
    end = spans[..., 1].gather(-1, order)
    reach = torch.cummax(pad(end, (1, 0)), -1).values[:, :-1]
    start = torch.maximum(start, reach)
    count = (end - start).clamp_(min=0)
    return start, pad(count.cumsum(-1), (1, 0))


def first_keys(q: Tensor, s_kv: int) -> Tensor:
    """Return where the keys of each row begin in K viewed as [B*G*S_kv, D]: [B*S*G]."""
    b, s, g = q.shape[:3]
    base = torch.arange(b * g, device=q.device).view(b, 1, g) * s_kv
    return base.expand(b, s, g).reshape(-1)


def packed_index(spans: Spans, first_keys: Tensor, room: int) -> tuple[Tensor, Tensor]:
    """Return the key that belongs to each place of the packing, int64 [room], and whether one
    does."""
    start, before = spans
    # One entry a span: its keys are consecutive in the packing as they are in K.
    length = before.diff(dim=1).flatten()
    ends = length.cumsum(0)
    shift = (start + first_keys.unsqueeze(1)).flatten() - (ends - length)
    place = torch.arange(room, device=start.device)
    span = torch.searchsorted(ends, place, right=True).clamp_(max=ends.numel() - 1)
    inside = place < ends[-1]
    return torch.where(inside, shift[span] + place, 0), inside


def take(x: Tensor, index: Tensor) -> Tensor:
    """Return the rows `index` of x, from a float32 copy if a gradient is needed.

    torch sums the gradients of a row in its own dtype: bfloat16 was off by 4 % of dk's norm (H200).
    """
    if wants_grad(x) and x.dtype != torch.float32:
        return x.float().index_select(0, index).to(x.dtype)
    return x.index_select(0, index)


def _gathered(x: Tensor, index: Tensor, inside: Tensor) -> Tensor:
    """Do as `take`, without a gradient of places that hold no key: FlashAttention does not write
    it."""
    rows = take(x, index)
    return torch.where(inside.unsqueeze(1), rows, 0) if rows.requires_grad else rows


def _refuse(elements: int, limit: int, what: str) -> None:
    if elements > limit:
        raise Unsupported(f"{what} would take {elements} elements")


@_baseline("masked_sdpa", on_cpu=True)
def masked_sdpa(
    q: Tensor, k: Tensor, v: Tensor, ranges: Tensor, *, sm_scale: float, selected_len: int
) -> Tensor:
    """Attention over all S_kv keys under the union mask; K, V and mask are not copied per head."""
    b, s, g, h, d = q.shape
    s_kv = k.shape[2]
    _refuse(b * s * g * s_kv, MAX_MASK_ELEMENTS, "the mask")
    queries = q.permute(0, 2, 3, 1, 4).reshape(b * g, h, s, d)
    keep = union_mask(ranges, s_kv).transpose(1, 2).reshape(b * g, s, s_kv)
    out = _torch.grouped_sdpa(queries, k.flatten(0, 1), v.flatten(0, 1), keep, sm_scale)
    return out.view(b, g, h, s, -1).permute(0, 3, 1, 2, 4)


@_baseline("packed_sdpa", on_cpu=True)
def packed_sdpa(
    q: Tensor, k: Tensor, v: Tensor, ranges: Tensor, *, sm_scale: float, selected_len: int
) -> Tensor:
    """Each row's keys gathered side by side, then SDPA under a mask."""
    width = min(selected_len, k.shape[2])
    return _packed(q, k, v, disjoint(ranges, k.shape[2]), width, sm_scale, masked=True)


@_baseline("packed_sdpa_unmasked", on_cpu=True)
def packed_sdpa_unmasked(
    q: Tensor, k: Tensor, v: Tensor, ranges: Tensor, *, sm_scale: float, selected_len: int
) -> Tensor:
    """`packed_sdpa` without a mask, if all rows select as many keys: that takes a faster SDPA."""
    spans = disjoint(ranges, k.shape[2])
    fewest, width = torch.stack(spans[1][:, -1].aminmax()).tolist()
    if fewest < width or width == 0:
        raise Unsupported("rows select unequal numbers of keys, or none")
    return _packed(q, k, v, spans, width, sm_scale, masked=False)


def _packed(
    q: Tensor, k: Tensor, v: Tensor, spans: Spans, width: int, sm_scale: float, *, masked: bool
) -> Tensor:
    start, before = spans
    b, s, g, h, d = q.shape
    rows, s_kv, dv = b * s * g, k.shape[2], v.shape[3]
    counts = before[:, -1]
    _refuse(rows * width * (d + dv) * q.element_size(), MAX_GATHERED_BYTES, "the packed copy")
    step = torch.arange(width, device=q.device).expand(rows, width)
    span = torch.searchsorted(before[:, 1:].contiguous(), step.contiguous(), right=True)
    span.clamp_(max=start.shape[1] - 1)
    key = start.gather(1, span) + step - before.gather(1, span)
    index = (key.clamp_(0, s_kv - 1) + first_keys(q, s_kv).unsqueeze(1)).flatten()
    keep = step < counts.clamp(min=1).unsqueeze(1) if masked else None
    keys = take(k.reshape(-1, d), index).view(rows, width, d)
    values = take(v.reshape(-1, dv), index).view(rows, width, dv)
    out = heads_as_queries(q.reshape(rows, h, d), keys, values, sm_scale, keep)
    out = out.reshape(b, s, g, h, dv)
    return out.masked_fill(counts.view(b, s, g, 1, 1) == 0, 0) if masked else out


def _flash(groups: bool, q: Tensor, k: Tensor, v: Tensor, ranges: Tensor, **options: Any) -> Tensor:
    """The selected keys of all rows gathered side by side, then FlashAttention's varlen.

    groups: one query of h heads a row, which splits long rows; else h queries of one head.
    """
    b, s, g, h, d = q.shape
    form = (1, h) if groups else (h, 1)
    rows, s_kv = b * s * g, k.shape[2]
    _torch.check_flash(q, v)
    spans = disjoint(ranges, s_kv)
    cu_k = pad(spans[1][:, -1].cumsum(0, dtype=torch.int32), (1, 0))
    longest = min(options["selected_len"], s_kv)
    _refuse(2 * rows * longest * d * q.element_size(), MAX_GATHERED_BYTES, "the packed copy")
    index, inside = packed_index(spans, first_keys(q, s_kv), rows * longest)
    out = _torch.aten_flash(
        q.reshape(rows * form[0], form[1], d),
        _gathered(k.reshape(-1, d), index, inside).unsqueeze(1),
        _gathered(v.reshape(-1, d), index, inside).unsqueeze(1),
        (_torch.every(form[0], rows, q.device), cu_k),
        (form[0], longest),
        options["sm_scale"],
        causal=False,
    )
    return out.view(b, s, g, h, d)


flash_varlen = _baseline("flash_varlen")(partial(_flash, False))
flash_varlen_gqa = _baseline("flash_varlen_gqa")(partial(_flash, True))


@_baseline("flex_attention", compiled_by="triton")
def flex_attention(
    q: Tensor, k: Tensor, v: Tensor, ranges: Tensor, *, sm_scale: float, selected_len: int
) -> Tensor:
    """FlexAttention, heads as queries; blocks of keys that no query of a block selects are free."""
    b, s, g, h, d = q.shape
    s_kv, dv = k.shape[2], v.shape[3]
    _torch.flex()
    _torch.check_head_dims(q, v)
    if TILE % h or s_kv % TILE:
        raise Unsupported(f"h must divide {TILE} and {TILE} divide S_kv")
    _refuse(b * s * g * s_kv, MAX_MASK_ELEMENTS, "the mask")
    keep = union_mask(ranges, s_kv).transpose(1, 2).contiguous()
    of_queries = keep.unflatten(3, (-1, TILE)).any(-1)
    ragged = -s % (TILE // h)
    tiles = pad(of_queries, (0, 0, 0, ragged)).unflatten(2, (-1, TILE // h)).any(3)

    def selected(bi: Tensor, gi: Tensor, qi: Tensor, ki: Tensor) -> Tensor:
        return keep[bi, gi, qi // h, ki]

    backward = wants_grad(q, k, v)
    mask = _torch.block_mask(tiles, None, selected, (s * h, s_kv), backward=backward)
    queries = q.transpose(1, 2).reshape(b, g, s * h, d)
    queries, k, v = (x.transpose(1, 2) for x in (queries, k, v))
    out = _torch.flex_attend(queries, k, v, mask, sm_scale).transpose(1, 2)
    return out.view(b, g, s, h, dv).transpose(1, 2)

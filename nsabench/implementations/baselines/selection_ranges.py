"""PyTorch's own attention on spans of K and V, under a mask or after a gather on the device."""

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

# Sorted disjoint spans: their starts [R,n], and the running sum of their lengths, from 0 [R,n+1].
Spans = tuple[Tensor, Tensor]

_baseline = partial(baseline, "selection_ranges", kind="general")


def union_mask(ranges: Tensor, s_kv: int) -> Tensor:
    """Return which keys are in some span [..., n, 2]: bool [..., s_kv]."""
    start = ranges[..., 0].clamp(0, s_kv)
    end = torch.maximum(ranges[..., 1].clamp(0, s_kv), start)
    edges = torch.zeros(*ranges.shape[:-2], s_kv + 1, dtype=torch.int32, device=ranges.device)
    count = torch.ones((), dtype=torch.int32, device=ranges.device).expand(start.shape)
    edges.scatter_add_(-1, start.long(), count).scatter_add_(-1, end.long(), -count)
    return edges[..., :-1].cumsum(-1, dtype=torch.int32) > 0


def make_disjoint(ranges: Tensor, s_kv: int) -> Spans:
    spans = ranges.flatten(0, -3).clamp(0, s_kv)
    start, order = spans[..., 0].sort(dim=-1)
    end = spans[..., 1].gather(-1, order)
    reach = torch.cummax(pad(end, (1, 0)), -1).values[:, :-1]
    start = torch.maximum(start, reach)
    count = (end - start).clamp_(min=0)
    return start, pad(count.cumsum(-1), (1, 0))


def first_keys(q: Tensor, s_kv: int) -> Tensor:
    """Return where the keys of each row [B*S*G] begin, if K is viewed as [B*G*S_kv, D]."""
    b, s, g = q.shape[:3]
    base = torch.arange(b * g, device=q.device).view(b, 1, g) * s_kv
    return base.expand(b, s, g).reshape(-1)


def packed_index(spans: Spans, first_keys: Tensor, room: int) -> tuple[Tensor, Tensor]:
    """Return the key at each place of the packed copy, int64 [room], and whether there is one."""
    start, before = spans
    # The keys of a span are consecutive in K and in the copy, so all have the same shift.
    length = before.diff(dim=1).flatten()
    ends = length.cumsum(0)
    shift = (start + first_keys.unsqueeze(1)).flatten() - (ends - length)
    place = torch.arange(room, device=start.device)
    span = torch.searchsorted(ends, place, right=True).clamp_(max=ends.numel() - 1)
    inside = place < ends[-1]
    return torch.where(inside, shift[span] + place, 0), inside


def gather_rows(x: Tensor, index: Tensor) -> Tensor:
    # Gather in float32, since the backward of `index_select` would sum gradients in 16 bits.
    if wants_grad(x) and x.dtype != torch.float32:
        return x.float().index_select(0, index).to(x.dtype)
    return x.index_select(0, index)


def _gather_keys(x: Tensor, index: Tensor, inside: Tensor) -> Tensor:
    rows = gather_rows(x, index)
    # FlashAttention leaves the gradients of places past the last key unwritten.
    return torch.where(inside.unsqueeze(1), rows, 0) if rows.requires_grad else rows


def _refuse(amount: int, limit: int, what: str) -> None:
    if amount > limit:
        raise Unsupported(f"it would need {amount} {what}")


@_baseline("masked_sdpa", on_cpu=True)
def masked_sdpa(q: Tensor, k: Tensor, v: Tensor, ranges: Tensor, **options: Any) -> Tensor:
    b, s, g, h, d = q.shape
    s_kv = k.shape[2]
    _refuse(b * s * g * s_kv, MAX_MASK_ELEMENTS, "elements of a mask")
    queries = q.permute(0, 2, 3, 1, 4).reshape(b * g, h, s, d)
    keep = union_mask(ranges, s_kv).transpose(1, 2).reshape(b * g, s, s_kv)
    keys, values, scale = k.flatten(0, 1), v.flatten(0, 1), options["sm_scale"]
    out = _torch.grouped_sdpa(queries, keys, values, keep, scale)
    return out.view(b, g, h, s, -1).permute(0, 3, 1, 2, 4)


@_baseline("packed_sdpa", on_cpu=True)
def packed_sdpa(q: Tensor, k: Tensor, v: Tensor, ranges: Tensor, **options: Any) -> Tensor:
    width = min(options["selected_len"], k.shape[2])
    start, before = make_disjoint(ranges, k.shape[2])
    b, s, g, h, d = q.shape
    rows, s_kv, dv = b * s * g, k.shape[2], v.shape[3]
    counts = before[:, -1]
    _refuse(rows * width * (d + dv) * q.element_size(), MAX_GATHERED_BYTES, "bytes for copies")
    step = torch.arange(width, device=q.device).expand(rows, width)
    span = torch.searchsorted(before[:, 1:].contiguous(), step.contiguous(), right=True)
    span.clamp_(max=start.shape[1] - 1)
    key = start.gather(1, span) + step - before.gather(1, span)
    index = (key.clamp_(0, s_kv - 1) + first_keys(q, s_kv).unsqueeze(1)).flatten()
    keep = step < counts.clamp(min=1).unsqueeze(1)
    keys = gather_rows(k.reshape(-1, d), index).view(rows, width, d)
    values = gather_rows(v.reshape(-1, dv), index).view(rows, width, dv)
    out = heads_as_queries(q.reshape(rows, h, d), keys, values, options["sm_scale"], keep)
    return out.reshape(b, s, g, h, dv).masked_fill(counts.view(b, s, g, 1, 1) == 0, 0)


def _flash(groups: bool, q: Tensor, k: Tensor, v: Tensor, ranges: Tensor, **options: Any) -> Tensor:
    """Gather the selected keys of all rows, and run the FlashAttention-2 that torch bundles.

    If `groups`, a row is one query of h heads, so that FlashAttention splits the keys of long rows.
    Otherwise, a row is h queries of one head.
    """
    b, s, g, h, d = q.shape
    form = (1, h) if groups else (h, 1)
    rows, s_kv = b * s * g, k.shape[2]
    _torch.check_flash(q, v)
    spans = make_disjoint(ranges, s_kv)
    cu_k = pad(spans[1][:, -1].cumsum(0, dtype=torch.int32), (1, 0))
    longest = min(options["selected_len"], s_kv)
    _refuse(2 * rows * longest * d * q.element_size(), MAX_GATHERED_BYTES, "bytes for copies")
    index, inside = packed_index(spans, first_keys(q, s_kv), rows * longest)
    out = _torch.aten_flash(
        q.reshape(rows * form[0], form[1], d),
        _gather_keys(k.reshape(-1, d), index, inside).unsqueeze(1),
        _gather_keys(v.reshape(-1, d), index, inside).unsqueeze(1),
        (_torch.equal_cu_seqlens(form[0], rows, q.device), cu_k),
        (form[0], longest),
        options["sm_scale"],
        causal=False,
    )
    return out.view(b, s, g, h, d)


flash_varlen = _baseline("flash_varlen")(partial(_flash, False))
flash_varlen_gqa = _baseline("flash_varlen_gqa")(partial(_flash, True))


@_baseline("flex_attention", compiled_by="triton")
def flex_attention(q: Tensor, k: Tensor, v: Tensor, ranges: Tensor, **options: Any) -> Tensor:
    """Run FlexAttention with heads as queries. It skips tiles without a selected key."""
    b, s, g, h, d = q.shape
    s_kv, dv = k.shape[2], v.shape[3]
    _torch.flex()
    _torch.check_head_dims(q, v)
    if TILE % h or s_kv % TILE:
        raise Unsupported(f"h must divide {TILE} and {TILE} divide S_kv")
    _refuse(b * s * g * s_kv, MAX_MASK_ELEMENTS, "elements of a mask")
    keep = union_mask(ranges, s_kv).transpose(1, 2).contiguous()
    of_queries = keep.unflatten(3, (-1, TILE)).any(-1)
    ragged = -s % (TILE // h)
    tiles = pad(of_queries, (0, 0, 0, ragged)).unflatten(2, (-1, TILE // h)).any(3)

    def selected(bi: Tensor, gi: Tensor, qi: Tensor, ki: Tensor) -> Tensor:
        return keep[bi, gi, qi // h, ki]

    backward = wants_grad(q, k, v)
    mask = _torch.block_mask(tiles, selected, (s * h, s_kv), backward=backward)
    queries = q.transpose(1, 2).reshape(b, g, s * h, d)
    queries, k, v = (x.transpose(1, 2) for x in (queries, k, v))
    out = _torch.flex_attend(queries, k, v, mask, options["sm_scale"]).transpose(1, 2)
    return out.view(b, g, s, h, dv).transpose(1, 2)

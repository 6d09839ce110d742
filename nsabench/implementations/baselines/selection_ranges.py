"""PyTorch's own attention on spans of a shared K/V: what reading the spans in place has to beat.

`masked_sdpa` and `flex_attention` attend to all keys under a mask; `packed_sdpa` and `flash_varlen`
first gather the selected keys, on the device and vectorised, sized by the `selected_len` that the
caller knows. `packed_sdpa_unmasked` reads two numbers back on the host, to leave the mask away
where all rows select as many keys. Nothing loops over rows or spans.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from nsabench import Unsupported, implementation
from nsabench.implementations.baselines.selection_varlen import every, flash
from nsabench.implementations.torch_attention.flash import MAX_MASK_ELEMENTS, check_flash
from nsabench.implementations.torch_attention.flex import (
    TILE,
    block_mask,
    check_head_dims,
    flex,
    wants_grad,
)

MAX_GATHERED_BYTES = 32 << 30


def union_mask(ranges: Tensor, s_kv: int) -> Tensor:
    """bool [..., s_kv]: the keys that some span [..., n, 2] holds, by counting starts and ends."""
    start = ranges[..., 0].clamp(0, s_kv)
    end = torch.maximum(ranges[..., 1].clamp(0, s_kv), start)
    edges = torch.zeros(*ranges.shape[:-2], s_kv + 1, dtype=torch.int32, device=ranges.device)
    one = torch.ones((), dtype=torch.int32, device=ranges.device).expand(start.shape)
    edges.scatter_add_(-1, start.long(), one).scatter_add_(-1, end.long(), -one)
    return edges[..., :-1].cumsum(-1, dtype=torch.int32) > 0


def disjoint(ranges: Tensor, s_kv: int) -> tuple[Tensor, Tensor]:
    """Sorted, disjoint starts [R,n] and the number of keys before each [R,n+1] (same union)."""
    spans = ranges.flatten(0, -3).clamp(0, s_kv)
    start, order = spans[..., 0].sort(dim=-1)
    end = spans[..., 1].gather(-1, order)
    reach = torch.cummax(pad(end, (1, 0)), -1).values[:, :-1]
    start = torch.maximum(start, reach)
    count = (end - start).clamp_(min=0)
    return start, pad(count.cumsum(-1), (1, 0))


def first_keys(q: Tensor, s_kv: int) -> Tensor:
    """Where each row's K/V begins in K viewed as [B*G*S_kv, D]; [B*S*G]."""
    b, s, g = q.shape[:3]
    base = torch.arange(b * g, device=q.device).view(b, 1, g) * s_kv
    return base.expand(b, s, g).reshape(-1)


def packed_index(
    start: Tensor, before: Tensor, first_keys: Tensor, room: int
) -> tuple[Tensor, Tensor]:
    """Of each place in the packing, int64 [room], the key that belongs there, and whether one does.

    start [R,n] and before [R,n+1] as `disjoint` gives them; first_keys [R].
    """
    # One entry a span: its keys are consecutive in the packing as they are in K.
    length = before.diff(dim=1).flatten()
    ends = length.cumsum(0)
    shift = (start + first_keys.unsqueeze(1)).flatten() - (ends - length)
    place = torch.arange(room, device=start.device)
    span = torch.searchsorted(ends, place, right=True).clamp_(max=ends.numel() - 1)
    inside = place < ends[-1]
    return torch.where(inside, shift[span] + place, 0), inside


def take(x: Tensor, index: Tensor) -> Tensor:
    """Rows `index` of x. Where a gradient is needed they are taken from a float32 copy: torch adds
    up the gradients of a row that is taken often in its own dtype, and bfloat16 sums of some
    hundred terms are off by per cents (seen on an H200: 4 % of dk's norm).
    """
    if wants_grad(x) and x.dtype != torch.float32:
        return x.float().index_select(0, index).to(x.dtype)
    return x.index_select(0, index)


def _gathered(x: Tensor, index: Tensor, inside: Tensor) -> Tensor:
    """As `take`, without a gradient of places that hold no key: FlashAttention leaves theirs as the
    memory was."""
    rows = take(x, index)
    return torch.where(inside.unsqueeze(1), rows, 0) if rows.requires_grad else rows


def _refuse(elements: int, limit: int, what: str) -> None:
    if elements > limit:
        raise Unsupported(f"{what} would take {elements} elements")


@implementation(
    op="selection_ranges",
    name="masked_sdpa",
    role="baseline",
    devices=("cuda", "cpu"),
    kind="general",
)
def masked_sdpa(
    q: Tensor, k: Tensor, v: Tensor, ranges: Tensor, *, sm_scale: float, selected_len: int
) -> Tensor:
    """Attention over all S_kv keys under the union mask; K, V and mask are not copied per head."""
    b, s, g, h, d = q.shape
    s_kv = k.shape[2]
    _refuse(b * s * g * s_kv, MAX_MASK_ELEMENTS, "the mask")
    keep = union_mask(ranges, s_kv)
    empty = ~keep.any(-1)
    keep = (keep | empty.unsqueeze(-1)).transpose(1, 2).reshape(b * g, 1, s, s_kv)
    out = scaled_dot_product_attention(
        q.permute(0, 2, 3, 1, 4).reshape(b * g, h, s, d),
        k.reshape(b * g, 1, s_kv, d).expand(-1, h, -1, -1),
        v.reshape(b * g, 1, s_kv, -1).expand(-1, h, -1, -1),
        attn_mask=keep,
        scale=sm_scale,
    )
    out = out.view(b, g, h, s, -1).permute(0, 3, 1, 2, 4)
    return out.masked_fill(empty[..., None, None], 0)


@implementation(
    op="selection_ranges",
    name="packed_sdpa",
    role="baseline",
    devices=("cuda", "cpu"),
    kind="general",
)
def packed_sdpa(
    q: Tensor, k: Tensor, v: Tensor, ranges: Tensor, *, sm_scale: float, selected_len: int
) -> Tensor:
    """Each row's keys gathered side by side, then SDPA under a mask."""
    start, before = disjoint(ranges, k.shape[2])
    return _packed(q, k, v, start, before, min(selected_len, k.shape[2]), sm_scale, masked=True)


@implementation(
    op="selection_ranges",
    name="packed_sdpa_unmasked",
    role="baseline",
    devices=("cuda", "cpu"),
    kind="general",
)
def packed_sdpa_unmasked(
    q: Tensor, k: Tensor, v: Tensor, ranges: Tensor, *, sm_scale: float, selected_len: int
) -> Tensor:
    """The same without a mask, which takes a faster SDPA, where all rows select as many keys."""
    start, before = disjoint(ranges, k.shape[2])
    fewest, width = torch.stack(before[:, -1].aminmax()).tolist()
    if fewest < width or width == 0:
        raise Unsupported("rows select unequal numbers of keys, or none")
    return _packed(q, k, v, start, before, width, sm_scale, masked=False)


def _packed(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    start: Tensor,
    before: Tensor,
    width: int,
    sm_scale: float,
    *,
    masked: bool,
) -> Tensor:
    b, s, g, h, d = q.shape
    rows, s_kv, dv = b * s * g, k.shape[2], v.shape[3]
    counts = before[:, -1]
    _refuse(rows * width * (d + dv) * q.element_size(), MAX_GATHERED_BYTES, "the packed copy")
    step = torch.arange(width, device=q.device).expand(rows, width)
    span = torch.searchsorted(before[:, 1:].contiguous(), step.contiguous(), right=True)
    span.clamp_(max=start.shape[1] - 1)
    key = start.gather(1, span) + step - before.gather(1, span)
    index = (key.clamp_(0, s_kv - 1) + first_keys(q, s_kv).unsqueeze(1)).flatten()
    mask = (step < counts.clamp(min=1).unsqueeze(1))[:, None, None] if masked else None
    out = scaled_dot_product_attention(
        q.reshape(rows, 1, h, d),
        take(k.reshape(-1, d), index).view(rows, 1, width, d),
        take(v.reshape(-1, dv), index).view(rows, 1, width, dv),
        attn_mask=mask,
        scale=sm_scale,
    )
    out = out.reshape(b, s, g, h, dv)
    return out.masked_fill(counts.view(b, s, g, 1, 1) == 0, 0) if masked else out


@implementation(
    op="selection_ranges", name="flash_varlen", role="baseline", devices=("cuda",), kind="general"
)
def flash_varlen(
    q: Tensor, k: Tensor, v: Tensor, ranges: Tensor, *, sm_scale: float, selected_len: int
) -> Tensor:
    """The selected keys of all rows gathered one behind the other, then FlashAttention's varlen,
    the h heads as h queries of one head."""
    h = q.shape[3]
    return _flash(q, k, v, ranges, sm_scale, selected_len, (h, 1))


@implementation(
    op="selection_ranges",
    name="flash_varlen_gqa",
    role="baseline",
    devices=("cuda",),
    kind="general",
)
def flash_varlen_gqa(
    q: Tensor, k: Tensor, v: Tensor, ranges: Tensor, *, sm_scale: float, selected_len: int
) -> Tensor:
    """The same, one query of h heads a row, which splits long rows."""
    return _flash(q, k, v, ranges, sm_scale, selected_len, (1, q.shape[3]))


def _flash(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    ranges: Tensor,
    sm_scale: float,
    selected_len: int,
    form: tuple[int, int],
) -> Tensor:
    """form: how many queries of how many heads a row is."""
    b, s, g, h, d = q.shape
    rows, s_kv = b * s * g, k.shape[2]
    check_flash(q, v)
    start, before = disjoint(ranges, s_kv)
    cu_k = pad(before[:, -1].cumsum(0, dtype=torch.int32), (1, 0))
    longest = min(selected_len, s_kv)
    _refuse(2 * rows * longest * d * q.element_size(), MAX_GATHERED_BYTES, "the packed copy")
    index, inside = packed_index(start, before, first_keys(q, s_kv), rows * longest)
    out = flash(
        q.reshape(rows * form[0], form[1], d),
        _gathered(k.reshape(-1, d), index, inside).unsqueeze(1),
        _gathered(v.reshape(-1, d), index, inside).unsqueeze(1),
        (every(form[0], rows, q.device), cu_k),
        (form[0], longest),
        sm_scale,
    )
    return out.view(b, s, g, h, d)


@implementation(
    op="selection_ranges",
    name="flex_attention",
    role="baseline",
    devices=("cuda",),
    kind="general",
    compiled_by="triton",
)
def flex_attention(
    q: Tensor, k: Tensor, v: Tensor, ranges: Tensor, *, sm_scale: float, selected_len: int
) -> Tensor:
    """FlexAttention, heads as queries; blocks of keys that no query of a block selects are free."""
    attend, _ = flex()
    b, s, g, h, d = q.shape
    s_kv, dv = k.shape[2], v.shape[3]
    check_head_dims(q, v)
    if TILE % h or s_kv % TILE:
        raise Unsupported(f"h must divide {TILE} and {TILE} divide S_kv")
    _refuse(b * s * g * s_kv, MAX_MASK_ELEMENTS, "the mask")
    keep = union_mask(ranges, s_kv).transpose(1, 2).contiguous()
    per_block = TILE // h
    q_blocks = -(-s // per_block)
    any_key = keep.view(b, g, s, s_kv // TILE, TILE).any(-1)
    any_key = pad(any_key, (0, 0, 0, q_blocks * per_block - s))
    blocks = any_key.view(b, g, q_blocks, per_block, -1).any(3)

    def selected(bi: Tensor, gi: Tensor, qi: Tensor, ki: Tensor) -> Tensor:
        return keep[bi, gi, qi // h, ki]

    out = attend(
        q.transpose(1, 2).reshape(b, g, s * h, d),
        k,
        v,
        block_mask=block_mask(blocks, None, selected, (s * h, s_kv), backward=wants_grad(q, k, v)),
        scale=sm_scale,
    )
    return out.view(b, g, s, h, dv).transpose(1, 2)

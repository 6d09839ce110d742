"""PyTorch's own attention on selected blocks of keys, with masks built in the timed call."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from nsabench import Unsupported
from nsabench.implementations import torch_attention as _torch
from nsabench.implementations._register import baseline
from nsabench.implementations.baselines.bands import causal_sdpa
from nsabench.implementations.baselines.selection_ranges import gather_rows
from nsabench.implementations.torch_attention import TILE, sequence_starts, wants_grad

MAX_MASK_ELEMENTS = 1 << 29
GATHERED_BYTES = 2 << 30  # bytes of K and V that are gathered at a time
MAX_SAVED_BYTES = 32 << 30  # the most bytes of gathered K and V that are kept for a backward

_baseline = partial(baseline, "selection_blocks")


def chosen_table(block_indices: Tensor, blocks: int) -> Tensor:
    """Return which blocks each row selected, bool [B,H,T,blocks]."""
    chosen = block_indices.transpose(1, 2).long()
    chosen = chosen.where((chosen >= 0) & (chosen < blocks), blocks)
    table = torch.zeros(*chosen.shape[:3], blocks + 1, dtype=torch.bool, device=chosen.device)
    return table.scatter_(-1, chosen, 1)[..., :blocks]


def each_once(block_indices: Tensor) -> Tensor:
    """Sort each row in ascending order, and replace repeated blocks by -1."""
    ordered = block_indices.sort(-1).values
    ordered[..., 1:].masked_fill_(ordered[..., 1:] == ordered[..., :-1], -1)
    return ordered


@_baseline("masked_sdpa", on_cpu=True, kind="general")
def masked_sdpa(
    q: Tensor, k: Tensor, v: Tensor, blocks: Tensor, *packing: Tensor, **options: Any
) -> Tensor:
    b, t, hq, d = q.shape
    h, block_size = k.shape[2], options["block_size"]
    if b * h * t * t > MAX_MASK_ELEMENTS:
        raise Unsupported(f"the mask would take {b * h * t * t} elements")
    token = torch.arange(t, device=q.device)
    start = sequence_starts(t, packing, q.device)
    table = chosen_table(blocks, -(-t // block_size))
    keep = table.index_select(-1, (token - start) // block_size)
    keep &= start == start[:, None]
    keep &= token <= token[:, None]
    queries = q.transpose(1, 2).reshape(b * h, hq // h, t, d)
    keys, values = (x.transpose(1, 2).flatten(0, 1) for x in (k, v))
    out = _torch.grouped_sdpa(queries, keys, values, keep.flatten(0, 1), options["sm_scale"])
    return out.view(b, h, hq // h, t, -1).permute(0, 3, 1, 2, 4).reshape(b, t, hq, -1)


@_baseline("gathered_sdpa", on_cpu=True, kind="general")
def gathered_sdpa(
    q: Tensor, k: Tensor, v: Tensor, blocks: Tensor, *packing: Tensor, **options: Any
) -> Tensor:
    """Gather the keys of some queries at a time, and run SDPA with a group's heads as queries."""
    b, t, hq, d = q.shape
    (h, slots), dv, block_size = blocks.shape[2:], v.shape[3], options["block_size"]
    each = h * slots * block_size * (d + dv) * q.element_size()
    if wants_grad(q) and b * t * each > MAX_SAVED_BYTES:
        raise Unsupported(f"the backward would need {b * t * each / 2**30:.0f} GiB of copies")
    start = sequence_starts(t, packing, q.device)
    position = torch.arange(t, device=q.device) - start
    within = torch.arange(block_size, device=q.device)
    # In the flat list, row j * H + i is token j of KV head i.
    flat_k, flat_v = k.reshape(b, t * h, d), v.reshape(b, t * h, dv)
    head = torch.arange(h, device=q.device).view(h, 1)
    step = max(1, GATHERED_BYTES // each)
    chunks = []
    for i in range(b):
        for first in range(0, t, step):
            some = slice(first, first + step)
            chosen = each_once(blocks[i, some].long())
            keys = (chosen.unsqueeze(-1) * block_size + within).flatten(2)
            keep = (keys >= 0) & (keys <= position[some, None, None])
            keys = torch.where(keep, (keys + start[some, None, None]) * h + head, 0)
            n, width = keys.shape[0], keys.shape[2]
            out = _torch.kept_sdpa(
                q[i, some].reshape(n * h, 1, hq // h, d),
                gather_rows(flat_k[i], keys.flatten()).view(n * h, 1, width, d),
                gather_rows(flat_v[i], keys.flatten()).view(n * h, 1, width, dv),
                keep.view(n * h, 1, 1, width),
                options["sm_scale"],
            )
            chunks.append(out.reshape(n, hq, dv))
    return torch.cat(chunks).view(b, t, hq, dv)


@_baseline("flex_attention", kind="general", compiled_by="triton")
def flex_attention(
    q: Tensor, k: Tensor, v: Tensor, blocks: Tensor, *packing: Tensor, **options: Any
) -> Tensor:
    """Run FlexAttention. It skips tiles of 128 queries and 128 keys without a selected key."""
    if packing:
        raise Unsupported("in packed sequences, blocks would cross the tiles of FlexAttention")
    b, t, hq = q.shape[:3]
    h, block_size = k.shape[2], options["block_size"]
    group = hq // h
    _torch.flex()
    _torch.check_head_dims(q, v)
    if t % TILE or TILE % block_size:
        raise Unsupported(f"T must be a multiple of {TILE}, which must be a multiple of block_size")
    table = chosen_table(blocks, t // block_size)
    per = TILE // block_size
    tiles = table.view(b, h, t // TILE, TILE, t // TILE, per).any(5).any(3)

    def selected(bi: Tensor, hi: Tensor, qi: Tensor, ki: Tensor) -> Tensor:
        return (ki <= qi) & table[bi, hi // group, qi, ki // block_size]

    tiles = tiles.tril().repeat_interleave(group, 1)
    mask = _torch.block_mask(tiles, selected, (t, t), backward=wants_grad(q, k, v))
    return _torch.flex_attend(q, k, v, mask, options["sm_scale"])


def _attend_to_all(attention: _torch.Attention, *tensors: Tensor, **options: Any) -> Tensor:
    q, k, v, *_ = tensors
    return attention(q, k, v, options["sm_scale"])


_dense = partial(_baseline, distributions=("dense",))
_dense("sdpa_causal", on_cpu=True)(partial(_attend_to_all, causal_sdpa))
for _backend in ("flash", "efficient", "cudnn"):
    _register = _dense(f"sdpa_causal_{_backend}", on_cpu=_backend in _torch.BACKENDS_ON_CPU)
    _register(partial(_attend_to_all, _torch.forced(causal_sdpa, _backend)))

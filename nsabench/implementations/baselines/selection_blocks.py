"""PyTorch's own attention on chosen blocks of keys.

`masked_sdpa` and `flex_attention` attend under a mask that is built in the call, as a model whose
selection changes with every token must; `gathered_sdpa` copies each query's keys side by side.
Attention to all keys is another function, unless all blocks are chosen: the `sdpa_causal`
baselines are declared for the distribution `dense` only. They say at which length a selection
begins to pay: a case `dense` and one of another distribution, of the same T, are read together.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from nsabench import Unsupported, implementation
from nsabench.implementations.baselines.selection_ranges import take
from nsabench.implementations.baselines.selection_rows import forced
from nsabench.implementations.torch_attention.backends import BACKENDS, sharing
from nsabench.implementations.torch_attention.flex import (
    TILE,
    block_mask,
    check_head_dims,
    flex,
    wants_grad,
)

OP = "selection_blocks"
MAX_MASK_ELEMENTS = 1 << 29
GATHERED_BYTES = 2 << 30  # of K and V at a time
MAX_SAVED_BYTES = 32 << 30  # of gathered K and V that a backward needs


def sequences(tokens: int, cu_seqlens: Tensor | None, device: torch.device) -> Tensor:
    """Where the sequence of each token begins; [T]."""
    if cu_seqlens is None:
        return torch.zeros(tokens, dtype=torch.int64, device=device)
    lengths = cu_seqlens.diff().long()
    return torch.repeat_interleave(cu_seqlens[:-1].long(), lengths, output_size=tokens)


def _table(block_indices: Tensor, blocks: int) -> Tensor:
    """bool [B,H,T,blocks]: which blocks each row chose."""
    chosen = block_indices.transpose(1, 2).long()
    chosen = chosen.where((chosen >= 0) & (chosen < blocks), blocks)
    table = torch.zeros(*chosen.shape[:3], blocks + 1, dtype=torch.bool, device=chosen.device)
    return table.scatter_(-1, chosen, True)[..., :blocks]


def attend_masked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    block_indices: Tensor,
    cu_seqlens: Tensor | None = None,
    *,
    sm_scale: float,
    block_size: int,
    causal: bool = True,
) -> Tensor:
    """Attention over all T keys under a mask; not causal, a query sees all keys of its blocks."""
    b, t, hq, d = q.shape
    h = k.shape[2]
    if b * h * t * t > MAX_MASK_ELEMENTS:
        raise Unsupported(f"the mask would take {b * h * t * t} elements")
    token = torch.arange(t, device=q.device)
    start = sequences(t, cu_seqlens, q.device)
    table = _table(block_indices, -(-t // block_size))
    keep = table.index_select(-1, (token - start) // block_size)
    keep &= start == start[:, None]
    if causal:
        keep &= token <= token[:, None]
    empty = ~keep.any(-1)
    keep = (keep | empty.unsqueeze(-1)).view(b * h, 1, t, t)
    out = scaled_dot_product_attention(
        q.transpose(1, 2).reshape(b * h, hq // h, t, d),
        k.transpose(1, 2).reshape(b * h, 1, t, d).expand(-1, hq // h, -1, -1),
        v.transpose(1, 2).reshape(b * h, 1, t, -1).expand(-1, hq // h, -1, -1),
        attn_mask=keep,
        scale=sm_scale,
    )
    out = out.view(b, h, hq // h, t, -1).masked_fill(empty.view(b, h, 1, t, 1), 0)
    return out.permute(0, 3, 1, 2, 4).reshape(b, t, hq, -1)


@implementation(op=OP, name="masked_sdpa", role="baseline", devices=("cuda", "cpu"), kind="general")
def masked_sdpa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    block_indices: Tensor,
    cu_seqlens: Tensor | None = None,
    *,
    sm_scale: float,
    block_size: int,
) -> Tensor:
    """All keys under a mask of T x T elements a KV head."""
    return attend_masked(
        q, k, v, block_indices, cu_seqlens, sm_scale=sm_scale, block_size=block_size
    )


@implementation(
    op=OP, name="gathered_sdpa", role="baseline", devices=("cuda", "cpu"), kind="general"
)
def gathered_sdpa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    block_indices: Tensor,
    cu_seqlens: Tensor | None = None,
    *,
    sm_scale: float,
    block_size: int,
) -> Tensor:
    """Each query's S blocks of keys side by side, a chunk of queries at a time, then SDPA with the
    heads of a group as its queries."""
    b, t, hq, d = q.shape
    h, slots = block_indices.shape[2:]
    dv = v.shape[3]
    each = h * slots * block_size * (d + dv) * q.element_size()
    if wants_grad(q) and b * t * each > MAX_SAVED_BYTES:
        raise Unsupported(f"the backward would need {b * t * each / 2**30:.0f} GiB of copies")
    start = sequences(t, cu_seqlens, q.device)
    position = torch.arange(t, device=q.device) - start
    within = torch.arange(block_size, device=q.device)
    # Keys of all KV heads in one list: KV head i of token j is at j * H + i.
    flat_k, flat_v = k.reshape(b, t * h, d), v.reshape(b, t * h, dv)
    head = torch.arange(h, device=q.device).view(h, 1)
    step = max(1, GATHERED_BYTES // each)
    chunks = []
    for i in range(b):
        for first in range(0, t, step):
            some = slice(first, first + step)
            blocks = block_indices[i, some].long().sort(-1).values
            blocks[..., 1:].masked_fill_(blocks[..., 1:] == blocks[..., :-1], -1)
            keys = (blocks.unsqueeze(-1) * block_size + within).flatten(2)
            keep = (keys >= 0) & (keys <= position[some, None, None])
            empty = ~keep.any(-1)
            keys = torch.where(keep, (keys + start[some, None, None]) * h + head, 0)
            n, width = keys.shape[0], keys.shape[2]
            out = scaled_dot_product_attention(
                q[i, some].reshape(n * h, 1, hq // h, d),
                take(flat_k[i], keys.flatten()).view(n * h, 1, width, d),
                take(flat_v[i], keys.flatten()).view(n * h, 1, width, dv),
                attn_mask=(keep | empty.unsqueeze(-1)).view(n * h, 1, 1, width),
                scale=sm_scale,
            )
            out = out.masked_fill(empty.view(n * h, 1, 1, 1), 0)
            chunks.append(out.reshape(n, hq, dv))
    return torch.cat(chunks).view(b, t, hq, dv)


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
    block_indices: Tensor,
    cu_seqlens: Tensor | None = None,
    *,
    sm_scale: float,
    block_size: int,
) -> Tensor:
    """FlexAttention; blocks of 128 keys that none of 128 queries chose are free."""
    attend, _ = flex()
    b, t, hq = q.shape[:3]
    h = k.shape[2]
    group = hq // h
    check_head_dims(q, v)
    if t % TILE or TILE % block_size:
        raise Unsupported(f"T must be a multiple of {TILE}, and that one of block_size")
    table = _table(block_indices, t // block_size)
    if cu_seqlens is None:
        per = TILE // block_size
        tiles = table.view(b, h, t // TILE, TILE, t // TILE, per).any(5).any(3)

        def selected(bi: Tensor, hi: Tensor, qi: Tensor, ki: Tensor) -> Tensor:
            return (ki <= qi) & table[bi, hi // group, qi, ki // block_size]
    else:
        # Blocks of a sequence lie across tiles: let the mask alone decide.
        tiles = torch.ones(b, h, t // TILE, t // TILE, dtype=torch.bool, device=q.device)
        start = sequences(t, cu_seqlens, q.device)
        local = (torch.arange(t, device=q.device) - start) // block_size

        def selected(bi: Tensor, hi: Tensor, qi: Tensor, ki: Tensor) -> Tensor:
            visible = (ki <= qi) & (start[qi] == start[ki])
            return visible & table[bi, hi // group, qi, local[ki]]

    tiles = tiles.tril().repeat_interleave(group, 1)
    out = attend(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        block_mask=block_mask(tiles, None, selected, (t, t), backward=wants_grad(q, k, v)),
        scale=sm_scale,
        enable_gqa=group > 1,
    )
    return out.transpose(1, 2)


def _causal(q: Tensor, k: Tensor, v: Tensor, sm_scale: float) -> Tensor:
    """Every key up to the query's own position, K and V shared by the heads of a group."""
    out = scaled_dot_product_attention(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        is_causal=True,
        scale=sm_scale,
        **sharing(q.shape[2] != k.shape[2]),
    )
    return out.transpose(1, 2)


def _register(name: str, attention: Any, devices: tuple[str, ...]) -> None:
    @implementation(op=OP, name=name, role="baseline", devices=devices, distributions=("dense",))
    def call(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        block_indices: Tensor,
        cu_seqlens: Tensor | None = None,
        *,
        sm_scale: float,
        block_size: int,
    ) -> Tensor:
        out: Tensor = attention(q, k, v, sm_scale)
        return out


_register("sdpa_causal", _causal, ("cuda", "cpu"))
for _suffix in BACKENDS:
    if _suffix != "math":
        _devices = ("cuda",) if _suffix in ("cudnn", "efficient") else ("cuda", "cpu")
        _register(f"sdpa_causal_{_suffix}", forced(_causal, _suffix), _devices)

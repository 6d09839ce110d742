"""FlashInfer: attention over a page table for each KV head, which is what a selection is.

A page need not begin at a multiple of its size here: keys are handed over as pages that begin at
every token, so that any block is one, of whatever sequence and head. What FlashInfer plans on the
host hangs on how many pages each query has. In a decode step sizes tell that, and the plan is made
once, as serving makes it; where the selection tells it, the plan is part of the call.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from nsabench import Unsupported, implementation
from nsabench.implementations.baselines.decode_branches import of_a_stretch
from nsabench.implementations.baselines.selection_blocks import sequences
from nsabench.implementations.libraries._calls import blocks_first, current_stream, function
from nsabench.implementations.libraries._flashinfer import (
    BUFFERS,
    DECODE,
    MAKES,
    PREFILL,
    PREFILL_MAKES,
    WORKSPACE_BYTES,
    Pages,
    Sizes,
    check,
    decode,
    paged,
    plans,
    prefill,
    refuse_capture,
)
from nsabench.implementations.libraries._pages import every_block_is_whole, first_of_heads
from nsabench.implementations.torch_attention.memoised import memoised
from nsabench.ops.selection_blocks import OP
from nsabench.packages.catalogue import FLASHINFER

SPARSE = "flashinfer.sparse:BlockSparseAttentionWrapper"
SPARSE_PLANS: tuple[str, ...] = (
    "indptr",
    "indices",
    "M",
    "N",
    "R",
    "C",
    "num_qo_heads",
    "num_kv_heads",
)
SPARSE_PLANS += ("head_dim", "mask", "q_data_type", "o_data_type", "sm_scale")
PAGE = 64  # keys of a page of a cache that is read whole
MOST_ROWS = 1 << 15  # that the block-sparse form has buffers for
# A query without blocks has no page, and a block that is given twice counts twice.
DISTRIBUTIONS = tuple(d for d in OP.distributions if d not in ("repeated", "empty_rows"))


@of_a_stretch("flashinfer", "cuda", package=FLASHINFER, compiled_by="nvcc")
def flashinfer(q: Tensor, k: Tensor, v: Tensor, sm_scale: float) -> Tensor:
    """`BatchDecodeWithPagedKVCacheWrapper` over a cache that lies in one piece a head."""
    function(FLASHINFER, DECODE, *MAKES, *BUFFERS)
    check(q, k, v)
    b, h, s, d = k.shape
    step = k.stride(1)  # a window is a slice of each head's cache
    if (k.stride(0), k.stride(2), step % d) != (h * step, d, 0):
        raise Unsupported("FlashInfer needs caches of heads that lie one behind the other")
    page = PAGE if s >= PAGE else 1
    pages, group = -(-s // page), q.shape[1] // h
    last = s - (pages - 1) * page
    of_rows = (b * h, pages, page, last, group, d, step // d)
    plan = plans.get(Sizes(*of_rows, q.dtype, q.device, sm_scale))
    out: Tensor = plan.wrapper.run(
        q.reshape(b * h, group, d), (paged(k, page, d), paged(v, page, d))
    )
    return out.view(q.shape)


@implementation(
    op="decode_selected",
    name="flashinfer_pages",
    role="baseline",
    devices=("cuda",),
    package=FLASHINFER,
    compiled_by="nvcc",
)
def flashinfer_pages(
    q: Tensor, k: Tensor, v: Tensor, ranges: Tensor, *, block_size: int, sm_scale: float
) -> Tensor:
    """The same, with the chosen blocks as the pages of a request a KV head."""
    function(FLASHINFER, DECODE, *MAKES, *BUFFERS)
    check(q, k, v)
    if not k.is_contiguous():
        raise Unsupported("FlashInfer needs caches of heads that lie one behind the other")
    b, h, s, d = k.shape
    n = ranges.shape[2]
    pages = min(n, -(-s // block_size))  # all that hold a token, since no block is chosen twice
    of_rows = (b * h, pages, block_size, block_size, q.shape[1] // h, d, 0)
    plan = plans.get(Sizes(*of_rows, q.dtype, q.device, sm_scale))
    first = first_of_heads(b * h, s, q.device).view(-1, 1)
    if every_block_is_whole(s, block_size, n):
        torch.add(ranges[..., 0].flatten(0, 1), first, out=plan.table.view(-1, pages))
    else:
        # The one that is cut off must be the last of its row.
        start, end = ranges.flatten(0, 1).unbind(-1)
        start, order = start.where(end > start, s).sort(-1)
        torch.add(start[:, :pages], first, out=plan.table.view(-1, pages))
        held = (end.gather(1, order) - start)[:, pages - 1]
        plan.last.copy_(held)
    q_rows = q.reshape(b * h, -1, d)
    out: Tensor = plan.wrapper.run(q_rows, (paged(k, block_size, d), paged(v, block_size, d)))
    return out.view(q.shape)


def _of_blocks(
    q: Tensor, k: Tensor, block_indices: Tensor, cu_seqlens: Tensor | None, block_size: int
) -> Pages:
    """The chosen blocks as the pages of a request a query and KV head."""
    b, t, h, _ = k.shape
    device = q.device
    start = sequences(t, cu_seqlens, device)
    position = (torch.arange(t, device=device) - start).view(t, 1)
    own = (position // block_size).unsqueeze(-1)
    chosen = blocks_first(block_indices.where(block_indices <= own, -1))
    held = chosen >= 0
    count = held.sum(-1)
    final = chosen.gather(-1, (count - 1).clamp_(min=0).unsqueeze(-1)).squeeze(-1)
    last = (position + 1 - final * block_size).clamp_(max=block_size)
    batch = torch.arange(b, device=device).view(b, 1, 1, 1) * t
    head = torch.arange(h, device=device).view(h, 1)
    token = batch + start.view(t, 1, 1) + chosen * block_size
    indices = (token * h + head)[held].to(torch.int32)
    indptr = pad(count.flatten().cumsum(0, dtype=torch.int32), (1, 0))
    return Pages(indptr, indices, last.flatten().to(torch.int32), block_size)


@implementation(
    op="selection_blocks",
    name="flashinfer_pages",
    role="baseline",
    devices=("cuda",),
    distributions=DISTRIBUTIONS,
    directions=("forward",),
    package=FLASHINFER,
    compiled_by="nvcc",
)
def flashinfer_blocks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    block_indices: Tensor,
    cu_seqlens: Tensor | None = None,
    *,
    sm_scale: float,
    block_size: int,
) -> Tensor:
    """Its decode with the chosen blocks as the pages of a request a query and KV head, planned in
    the call."""
    function(FLASHINFER, DECODE, *MAKES, *BUFFERS)
    check(q, k, v)
    refuse_capture()
    h, d = k.shape[2:]
    pages = _of_blocks(q, k, block_indices, cu_seqlens, block_size)
    rows = q.reshape(-1, q.shape[2] // h, d)
    keys, values = (paged(x.contiguous(), block_size, h * d) for x in (k, v))
    out: Tensor = decode(rows, pages, sm_scale).run(rows, (keys, values))
    return out.view(q.shape)


@implementation(
    op="selection_blocks",
    name="flashinfer_prefill",
    role="baseline",
    devices=("cuda",),
    distributions=DISTRIBUTIONS,
    directions=("forward",),
    package=FLASHINFER,
    compiled_by="nvcc",
)
def flashinfer_prefill_blocks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    block_indices: Tensor,
    cu_seqlens: Tensor | None = None,
    *,
    sm_scale: float,
    block_size: int,
) -> Tensor:
    """The same by its prefill, of FlashAttention-2: that of 3 takes pages whose tokens lie nearer
    than pages do."""
    function(FLASHINFER, PREFILL, *PREFILL_MAKES)
    check(q, k, v)
    refuse_capture()
    h, d = k.shape[2:]
    pages = _of_blocks(q, k, block_indices, cu_seqlens, block_size)
    rows = q.reshape(-1, q.shape[2] // h, d)
    keys, values = (paged(x.contiguous(), block_size, h * d) for x in (k, v))
    out: Tensor = prefill(rows, pages, sm_scale, "fa2").run(rows, (keys, values))
    return out.view(q.shape)


@memoised(4)
def _sparse(stream: int, device: torch.device) -> Any:
    make = function(FLASHINFER, SPARSE, "float_workspace_buffer", "backend")
    workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
    return make(workspace, backend="fa2")  # the one that takes a mask


@implementation(
    op="selection_blocks",
    name="flashinfer_block_sparse",
    role="baseline",
    devices=("cuda",),
    distributions=DISTRIBUTIONS,
    directions=("forward",),
    kind="general",
    package=FLASHINFER,
    compiled_by="nvcc",
)
def flashinfer_block_sparse(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    block_indices: Tensor,
    cu_seqlens: Tensor | None = None,
    *,
    sm_scale: float,
    block_size: int,
) -> Tensor:
    """`BlockSparseAttentionWrapper`: rows of one query, one KV head after the other, and a mask
    for what is causal within a block."""
    function(FLASHINFER, f"{SPARSE}.plan", "self", *SPARSE_PLANS)
    check(q, k, v)
    refuse_capture()
    b, t, h, d = k.shape
    if cu_seqlens is not None or b > 1:
        raise Unsupported("FlashInfer's block-sparse form takes one sequence")
    if t > MOST_ROWS or t % block_size:
        raise Unsupported(f"T must be a multiple of block_size and at most {MOST_ROWS} here")
    group = q.shape[2] // h
    position = torch.arange(t, device=q.device).view(t, 1)
    within = torch.arange(block_size, device=q.device)
    wrapper = _sparse(current_stream(), q.device)
    outs = []
    for head in range(h):
        chosen = block_indices[0, :, head]
        chosen = blocks_first(chosen.where(chosen <= position // block_size, -1))
        held = chosen >= 0
        indptr = pad(held.sum(-1).cumsum(0, dtype=torch.int32), (1, 0))
        seen = (chosen.unsqueeze(-1) * block_size + within) <= position.unsqueeze(-1)
        mask = seen[held].view(-1, 1, block_size)
        of_heads = (group, 1, d, mask, q.dtype, q.dtype, sm_scale)
        values = (indptr, chosen[held], t, t, 1, block_size, *of_heads)
        wrapper.plan(**dict(zip(SPARSE_PLANS, values, strict=True)))
        some = slice(head * group, (head + 1) * group)
        one = slice(head, head + 1)
        outs.append(wrapper.run(q[0, :, some], k[0, :, one], v[0, :, one]))
    return torch.cat(outs, 1).unsqueeze(0)

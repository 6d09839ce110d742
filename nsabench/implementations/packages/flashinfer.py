"""FlashInfer: attention over a page table for each KV head, which is what a selection is.

A page need not begin at a multiple of its size here: keys are handed over as pages that begin at
every token, so that any block is one, of whatever sequence and head. What FlashInfer plans on the
host hangs on how many pages each query has. In a decode step sizes tell that, and the plan is made
once, as serving makes it; where the selection tells it, the plan is part of the call.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from nsabench import Unsupported, implementation
from nsabench.implementations.baselines.decode_branches import of_a_stretch
from nsabench.implementations.baselines.selection_blocks import sequences
from nsabench.implementations.packages._calls import (
    blocks_first,
    current_stream,
    function,
    is_capturing,
    refuse_float32,
)
from nsabench.implementations.packages._pages import every_block_is_whole, first_of_heads
from nsabench.implementations.torch_attention.memoised import memoised
from nsabench.ops.selection_blocks import OP
from nsabench.packages.catalogue import FLASHINFER

DECODE = "flashinfer.decode:BatchDecodeWithPagedKVCacheWrapper"
MAKES = ("float_workspace_buffer", "kv_layout", "use_cuda_graph", "use_tensor_cores")
BUFFERS = ("paged_kv_indptr_buffer", "paged_kv_indices_buffer", "paged_kv_last_page_len_buffer")
PLANS: tuple[str, ...] = (
    "indptr",
    "indices",
    "last_page_len",
    "num_qo_heads",
    "num_kv_heads",
    "head_dim",
)
PLANS += ("page_size", "q_data_type", "sm_scale")
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
WORKSPACE_BYTES = 128 << 20
PAGE = 64  # keys of a page of a cache that is read whole
MOST_ROWS = 1 << 15  # that the block-sparse form has buffers for
# A query without blocks has no page, and a block that is given twice counts twice.
DISTRIBUTIONS = tuple(d for d in OP.distributions if d not in ("repeated", "empty_rows"))


@dataclass
class Planned:
    """A wrapper that was planned for sizes, and the page table that it reads."""

    wrapper: Any
    table: Tensor  # int32 [rows * pages]
    last: Tensor  # int32 [rows]: keys of the last page


@dataclass(frozen=True)
class Sizes:
    """`rows` requests of one query of `group` heads on one KV head, `pages` pages of `page` keys
    each, of the last of them `last` keys. step: tokens from one row's cache to that of the next,
    all of which it reads; 0: the table is written in each call."""

    rows: int
    pages: int
    page: int
    last: int
    group: int
    width: int
    step: int
    dtype: torch.dtype
    device: torch.device
    sm_scale: float


@dataclass
class _Plans:
    """Plans by their sizes. Calls on several streams must not share a workspace; a capture takes
    that of the call before it, since nothing can be planned in one."""

    most: int = 16
    by_sizes: dict[Sizes, dict[int, Planned]] = field(default_factory=dict)

    def get(self, sizes: Sizes) -> Planned:
        plans = self.by_sizes.setdefault(sizes, {})
        if plans and is_capturing():
            return next(reversed(plans.values()))
        stream = current_stream()
        if stream not in plans:
            _refuse_capture()
            if len(self.by_sizes) > self.most:
                del self.by_sizes[next(iter(self.by_sizes))]
            plans[stream] = _plan(sizes)
        return plans[stream]


_plans = _Plans()


def _refuse_capture() -> None:
    if is_capturing():
        raise Unsupported("FlashInfer plans on the host, which a graph cannot capture")


def _wrapper(device: torch.device, group: int, **buffers: Any) -> Any:
    make = function(FLASHINFER, DECODE, *MAKES, *BUFFERS)
    function(FLASHINFER, f"{DECODE}.plan", "self", *PLANS)
    workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
    graph = bool(buffers)
    # On tensor cores the heads of a group are rows of one tile.
    return make(workspace, "NHD", use_cuda_graph=graph, use_tensor_cores=group > 1, **buffers)


def _plan(sizes: Sizes) -> Planned:
    rows, pages, device = sizes.rows, sizes.pages, sizes.device
    indptr = torch.arange(0, (rows + 1) * pages, pages, dtype=torch.int32, device=device)
    table = first_of_heads(rows, max(sizes.step, 1), device).unsqueeze(1)
    table = table + torch.arange(pages, dtype=torch.int32, device=device) * sizes.page
    table = table.flatten().contiguous()
    last = torch.full((rows,), sizes.last, dtype=torch.int32, device=device)
    buffers = dict(zip(BUFFERS, (indptr.clone(), table, last), strict=True))
    wrapper = _wrapper(device, sizes.group, **buffers)
    of_heads = (sizes.group, 1, sizes.width, sizes.page, sizes.dtype, sizes.sm_scale)
    values = (indptr, table.clone(), last.clone(), *of_heads)
    wrapper.plan(**dict(zip(PLANS, values, strict=True)))
    if device.type == "cuda":
        torch.cuda.synchronize(device)  # a capture on another stream may use it
    return Planned(wrapper, table, last)


def _check(q: Tensor, k: Tensor, v: Tensor) -> None:
    refuse_float32(q, "FlashInfer")
    if q.shape[-1] != v.shape[-1] or q.shape[-1] not in (64, 128, 256):
        raise Unsupported("FlashInfer needs D = Dv of 64, 128 or 256")
    if k.stride() != v.stride():
        raise Unsupported("FlashInfer needs k and v laid out alike")


def _paged(x: Tensor, page: int, token: int) -> Tensor:
    """[pages,page,1,D]: a page begins at every D elements from the first of x on, and has tokens
    that lie `token` elements apart."""
    width, first = x.shape[-1], x.storage_offset()
    there = x.untyped_storage().nbytes() // x.element_size() - first
    pages = (there - (page - 1) * token) // width
    if pages < 1:
        raise Unsupported(f"there are fewer keys than a page of {page} holds")
    return x.as_strided((pages, page, 1, width), (width, token, width, 1), first)


@of_a_stretch("flashinfer", "cuda", package=FLASHINFER)
def flashinfer(q: Tensor, k: Tensor, v: Tensor, sm_scale: float) -> Tensor:
    """`BatchDecodeWithPagedKVCacheWrapper` over a cache that lies in one piece a head."""
    function(FLASHINFER, DECODE, *MAKES, *BUFFERS)
    _check(q, k, v)
    b, h, s, d = k.shape
    step = k.stride(1)  # a window is a slice of each head's cache
    if (k.stride(0), k.stride(2), step % d) != (h * step, d, 0):
        raise Unsupported("FlashInfer needs caches of heads that lie one behind the other")
    page = PAGE if s >= PAGE else 1
    pages, group = -(-s // page), q.shape[1] // h
    last = s - (pages - 1) * page
    of_rows = (b * h, pages, page, last, group, d, step // d)
    plan = _plans.get(Sizes(*of_rows, q.dtype, q.device, sm_scale))
    out: Tensor = plan.wrapper.run(
        q.reshape(b * h, group, d), (_paged(k, page, d), _paged(v, page, d))
    )
    return out.view(q.shape)


@implementation(
    op="decode_selected",
    name="flashinfer_pages",
    role="baseline",
    devices=("cuda",),
    package=FLASHINFER,
)
def flashinfer_pages(
    q: Tensor, k: Tensor, v: Tensor, ranges: Tensor, *, block_size: int, sm_scale: float
) -> Tensor:
    """The same, with the chosen blocks as the pages of a request a KV head."""
    function(FLASHINFER, DECODE, *MAKES, *BUFFERS)
    _check(q, k, v)
    if not k.is_contiguous():
        raise Unsupported("FlashInfer needs caches of heads that lie one behind the other")
    b, h, s, d = k.shape
    n = ranges.shape[2]
    pages = min(n, -(-s // block_size))  # all that hold a token, since no block is chosen twice
    of_rows = (b * h, pages, block_size, block_size, q.shape[1] // h, d, 0)
    plan = _plans.get(Sizes(*of_rows, q.dtype, q.device, sm_scale))
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
    out: Tensor = plan.wrapper.run(q_rows, (_paged(k, block_size, d), _paged(v, block_size, d)))
    return out.view(q.shape)


@memoised(4)
def _prefill(stream: int, group: int, device: torch.device) -> Any:
    return _wrapper(device, group)


@implementation(
    op="selection_blocks",
    name="flashinfer_pages",
    role="baseline",
    devices=("cuda",),
    distributions=DISTRIBUTIONS,
    directions=("forward",),
    package=FLASHINFER,
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
    """The chosen blocks as the pages of a request a query and KV head, planned in the call."""
    function(FLASHINFER, DECODE, *MAKES, *BUFFERS)
    _check(q, k, v)
    _refuse_capture()
    b, t, h, d = k.shape
    group = q.shape[2] // h
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
    wrapper = _prefill(current_stream(), group, device)
    of_heads = (group, 1, d, block_size, q.dtype, sm_scale)
    values = (indptr, indices, last.flatten().to(torch.int32), *of_heads)
    wrapper.plan(**dict(zip(PLANS, values, strict=True)))
    keys, values_ = (_paged(x.contiguous(), block_size, h * d) for x in (k, v))
    out: Tensor = wrapper.run(q.reshape(b * t * h, group, d), (keys, values_))
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
    _check(q, k, v)
    _refuse_capture()
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

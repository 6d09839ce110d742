"""What the adapters of FlashInfer share: its wrapper for decode, plans that are kept, and keys as
pages that begin at every token."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from nsabench import Unsupported
from nsabench.implementations.libraries._calls import (
    current_stream,
    function,
    is_capturing,
    refuse_float32,
)
from nsabench.implementations.libraries._pages import first_of_heads
from nsabench.implementations.torch_attention.memoised import memoised
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
PREFILL = "flashinfer.prefill:BatchPrefillWithPagedKVCacheWrapper"
PREFILL_MAKES = ("float_workspace_buffer", "kv_layout", "backend")
PREFILL_PLANS: tuple[str, ...] = (
    "qo_indptr",
    "paged_kv_indptr",
    "paged_kv_indices",
    "paged_kv_last_page_len",
    "num_qo_heads",
    "num_kv_heads",
    "head_dim_qk",
)
PREFILL_PLANS += ("page_size", "q_data_type", "sm_scale")
WORKSPACE_BYTES = 128 << 20


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
        by_stream = self.by_sizes.setdefault(sizes, {})
        if by_stream and is_capturing():
            return next(reversed(by_stream.values()))
        stream = current_stream()
        if stream not in by_stream:
            refuse_capture()
            if len(self.by_sizes) > self.most:
                del self.by_sizes[next(iter(self.by_sizes))]
            by_stream[stream] = _plan(sizes)
        return by_stream[stream]


plans = _Plans()


def refuse_capture() -> None:
    """Raises `Unsupported` in a capture."""
    if is_capturing():
        raise Unsupported("FlashInfer plans on the host, which a graph cannot capture")


def wrapper_of(device: torch.device, group: int, **buffers: Any) -> Any:
    """The wrapper for one query a request, with buffers where a plan is to be kept."""
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
    wrapper = wrapper_of(device, sizes.group, **buffers)
    of_heads = (sizes.group, 1, sizes.width, sizes.page, sizes.dtype, sizes.sm_scale)
    values = (indptr, table.clone(), last.clone(), *of_heads)
    wrapper.plan(**dict(zip(PLANS, values, strict=True)))
    if device.type == "cuda":
        torch.cuda.synchronize(device)  # a capture on another stream may use it
    return Planned(wrapper, table, last)


def check(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Raises `Unsupported` for what FlashInfer does not take."""
    refuse_float32(q, "FlashInfer")
    if q.shape[-1] != v.shape[-1] or q.shape[-1] not in (64, 128, 256):
        raise Unsupported("FlashInfer needs D = Dv of 64, 128 or 256")
    if k.stride() != v.stride():
        raise Unsupported("FlashInfer needs k and v laid out alike")


def paged(x: Tensor, page: int, token: int) -> Tensor:
    """[pages,page,1,D]: a page begins at every D elements from the first of x on, and has tokens
    that lie `token` elements apart."""
    width, first = x.shape[-1], x.storage_offset()
    there = x.untyped_storage().nbytes() // x.element_size() - first
    pages = (there - (page - 1) * token) // width
    if pages < 1:
        raise Unsupported(f"there are fewer keys than a page of {page} holds")
    return x.as_strided((pages, page, 1, width), (width, token, width, 1), first)


@dataclass(frozen=True)
class Pages:
    """The pages of requests of one query: indptr int32 [rows + 1], indices int32, and last, int32
    [rows]: keys of each one's last page."""

    indptr: Tensor
    indices: Tensor
    last: Tensor
    size: int


@memoised(4)
def _decode(stream: int, group: int, device: torch.device) -> Any:
    return wrapper_of(device, group)


@memoised(4)
def _prefill(stream: int, backend: str, device: torch.device) -> Any:
    make = function(FLASHINFER, PREFILL, *PREFILL_MAKES)
    function(FLASHINFER, f"{PREFILL}.plan", "self", *PREFILL_PLANS)
    workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
    return make(workspace, "NHD", backend=backend)


def decode(q: Tensor, pages: Pages, sm_scale: float) -> Any:
    """The wrapper for decode, planned for q [rows,group,D] and one KV head."""
    wrapper = _decode(current_stream(), q.shape[1], q.device)
    of_heads = (q.shape[1], 1, q.shape[2], pages.size, q.dtype, sm_scale)
    values = (pages.indptr, pages.indices, pages.last, *of_heads)
    wrapper.plan(**dict(zip(PLANS, values, strict=True)))
    return wrapper


def prefill(q: Tensor, pages: Pages, sm_scale: float, backend: str) -> Any:
    """That for prefill, of one query a request, likewise."""
    wrapper = _prefill(current_stream(), backend, q.device)
    queries = torch.arange(q.shape[0] + 1, dtype=torch.int32, device=q.device)
    of_heads = (q.shape[1], 1, q.shape[2], pages.size, q.dtype, sm_scale)
    values = (queries, pages.indptr, pages.indices, pages.last, *of_heads)
    wrapper.plan(**dict(zip(PREFILL_PLANS, values, strict=True)))
    return wrapper

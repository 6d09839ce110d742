"""FlashInfer's decode kernel, with a page table for each KV head.

A page may begin at any token, so a selected block is a page. FlashInfer makes a plan on the host.
A plan depends only on sizes, so it is kept, as in serving. If blocks are selected, each call writes
the page table.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from nsabench import Unsupported
from nsabench.implementations._register import baseline
from nsabench.implementations.baselines.decode import whole_cache
from nsabench.implementations.libraries import _calls
from nsabench.registry import Package

FLASHINFER = Package("flashinfer-python", "Apache-2.0")
WRAPPER = "flashinfer.decode:BatchDecodeWithPagedKVCacheWrapper"
WORKSPACE_BYTES = 128 << 20
MOST_PLANS = 16
PAGE = 64  # keys of a page, if the whole cache is read
_declared: dict[str, Any] = {"package": FLASHINFER, "compiled_by": "nvcc"}


class PagePlan(NamedTuple):
    wrapper: Any
    table: Tensor  # the pages of each row
    last: Tensor  # the number of keys in the last page of each row


plans: dict[tuple[object, ...], dict[int, PagePlan]] = {}  # by sizes, then by stream


def _keep_plan(
    q: Tensor, count: int, size: int, last: int, sm_scale: float, step: int = 0
) -> PagePlan:
    """Return the plan for rows q [rows,group,D] that read `count` pages of `size` keys each.

    The last page has `last` keys. If whole caches are read, `step` is the number of tokens from one
    head's cache to the next. If the caller fills the table, `step` is 0. A plan has a workspace,
    which only one stream may use. A capture uses the newest plan.
    """
    key = (q.shape, q.dtype, q.device, count, size, last, sm_scale, step)
    by_stream = plans.setdefault(key, {})
    if by_stream and _calls.is_capturing():
        return next(reversed(by_stream.values()))
    stream = torch.cuda.current_stream().cuda_stream if torch.cuda.is_available() else 0
    if stream not in by_stream:
        if _calls.is_capturing():
            raise Unsupported("FlashInfer plans on the host, which a graph cannot capture")
        if len(plans) > MOST_PLANS:
            del plans[next(iter(plans))]
        by_stream[stream] = _plan(q, count, size, last, sm_scale, step)
        if q.device.type == "cuda":
            torch.cuda.synchronize(q.device)  # a capture on another stream may use the plan
    return by_stream[stream]


def _plan(q: Tensor, count: int, size: int, last: int, sm_scale: float, step: int) -> PagePlan:
    """Plan for q [rows,group,D], with each row as a request of one query on one KV head."""
    (rows, group, width), device = q.shape, q.device
    int32: dict[str, Any] = {"dtype": torch.int32, "device": device}
    first = _calls.first_of_heads(rows, max(step, 1), device).unsqueeze(1)
    pages = {
        "indptr": torch.arange(0, (rows + 1) * count, count, **int32),
        "indices": (first + torch.arange(count, **int32) * size).flatten(),
        "last_page_len": torch.full((rows,), last, **int32),
    }
    indptr, table, lasts = (x.clone() for x in pages.values())
    options = {
        "float_workspace_buffer": torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device),
        "kv_layout": "NHD",
        "use_cuda_graph": True,  # so that the plan stays valid
        "use_tensor_cores": group > 1,  # the heads of a group are the rows of one tile
        "paged_kv_indptr_buffer": indptr,
        "paged_kv_indices_buffer": table,
        "paged_kv_last_page_len_buffer": lasts,
    }
    planned = {
        **pages,
        "num_qo_heads": group,
        "num_kv_heads": 1,
        "head_dim": width,
        "page_size": size,
        "q_data_type": q.dtype,
        "sm_scale": sm_scale,
    }
    _calls.find_function(FLASHINFER, f"{WRAPPER}.plan", "self", *planned)
    wrapper = _calls.find_function(FLASHINFER, WRAPPER, *options)(**options)
    wrapper.plan(**planned)
    return PagePlan(wrapper, table, lasts)


def _check(q: Tensor, k: Tensor, v: Tensor, *, fits: bool) -> None:
    _calls.find_function(FLASHINFER, WRAPPER)
    _calls.refuse_float32(q, "FlashInfer")
    if q.shape[-1] != v.shape[-1] or q.shape[-1] not in (64, 128, 256):
        raise Unsupported("FlashInfer needs D = Dv of 64, 128 or 256")
    if k.stride() != v.stride():
        raise Unsupported("FlashInfer needs k and v with equal strides")
    if not fits:
        raise Unsupported("FlashInfer needs caches with contiguous heads")


def _view_pages(x: Tensor, page: int) -> Tensor:
    """View x as overlapping pages [pages,page,1,D]: one begins at each token."""
    width, first = x.shape[-1], x.storage_offset()
    there = x.untyped_storage().nbytes() // x.element_size() - first
    pages = there // width - (page - 1)
    if pages < 1:
        raise Unsupported(f"the cache is shorter than a page of {page} keys")
    return x.as_strided((pages, page, 1, width), (width, width, width, 1), first)


def _run(wrapper: Any, q: Tensor, k: Tensor, v: Tensor, page: int) -> Tensor:
    out: Tensor = wrapper.run(q, (_view_pages(k, page), _view_pages(v, page)))
    return out


@whole_cache("flashinfer", **_declared)
def flashinfer(q: Tensor, k: Tensor, v: Tensor, sm_scale: float) -> Tensor:
    b, h, s, d = k.shape
    step = k.stride(1)  # larger than s * d if a window was cut from each head's cache
    _check(q, k, v, fits=(k.stride(0), k.stride(2), step % d) == (h * step, d, 0))
    page = PAGE if s >= PAGE else 1
    pages = -(-s // page)
    rows = q.reshape(b * h, -1, d)
    plan = _keep_plan(rows, pages, page, s - (pages - 1) * page, sm_scale, step // d)
    return _run(plan.wrapper, rows, k, v, page).view(q.shape)


@baseline("decode_selected", "flashinfer_pages", **_declared)
def flashinfer_pages(q: Tensor, k: Tensor, v: Tensor, ranges: Tensor, **options: Any) -> Tensor:
    _check(q, k, v, fits=k.is_contiguous())
    b, h, s, d = k.shape
    n, block_size = ranges.shape[2], options["block_size"]
    pages = min(n, -(-s // block_size))  # no block is chosen twice, so further pages are empty
    rows = q.reshape(b * h, -1, d)
    plan = _keep_plan(rows, pages, block_size, block_size, options["sm_scale"])
    table = plan.table.view(-1, pages)
    first = _calls.first_of_heads(b * h, s, q.device).view(-1, 1)
    if _calls.every_block_is_whole(s, block_size, n):
        torch.add(ranges[..., 0].flatten(0, 1), first, out=table)
    else:
        # Only the last page of a row may be partial, so sort the blocks.
        start, end = ranges.flatten(0, 1).unbind(-1)
        start, order = start.where(end > start, s).sort(-1)
        torch.add(start[:, :pages], first, out=table)
        plan.last.copy_((end.gather(1, order) - start)[:, pages - 1])
    return _run(plan.wrapper, rows, k, v, block_size).view(q.shape)

"""FlashInfer over page tables, one a KV head.

A page may begin at any token, so any block is a page. FlashInfer plans on the host. A plan that
depends on sizes alone is kept, as in serving; otherwise planning is part of the timed call, which
no graph can capture.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from nsabench import Unsupported
from nsabench.implementations import torch_attention as _torch
from nsabench.implementations._register import baseline
from nsabench.implementations.baselines.decode import whole_cache
from nsabench.implementations.baselines.selection_ranges import disjoint, first_keys
from nsabench.implementations.libraries import _calls
from nsabench.implementations.libraries._catalogue import FLASHINFER

WORKSPACE_BYTES = 128 << 20
MOST_PLANS = 16  # that are kept
PAGE = 64  # keys of a page of a cache that is read whole
PAGES_OF_SPANS = (64, 32, 16)
_declared: dict[str, Any] = {"package": FLASHINFER, "compiled_by": "nvcc"}


@dataclass(frozen=True)
class _Form:
    """A class of FlashInfer with the parameters of its constructor and of its `plan`."""

    where: str
    makes: tuple[str, ...]
    plans: tuple[str, ...]

    def find(self) -> Any:
        _calls.find_function(FLASHINFER, f"{self.where}.plan", "self", *self.plans)
        return _calls.find_function(FLASHINFER, self.where, *self.makes)

    def make(self, device: torch.device, **options: Any) -> Any:
        workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        return self.find()(workspace, "NHD", **options)


_HEADS = ("num_qo_heads", "num_kv_heads")
_TYPES = ("page_size", "q_data_type", "sm_scale")
_BUFFERS = ("paged_kv_indptr_buffer", "paged_kv_indices_buffer", "paged_kv_last_page_len_buffer")
_PAGES = ("paged_kv_indptr", "paged_kv_indices", "paged_kv_last_page_len")
DECODE = _Form(
    "flashinfer.decode:BatchDecodeWithPagedKVCacheWrapper",
    ("float_workspace_buffer", "kv_layout", "use_cuda_graph", "use_tensor_cores", *_BUFFERS),
    ("indptr", "indices", "last_page_len", *_HEADS, "head_dim", *_TYPES),
)
PREFILL = _Form(
    "flashinfer.prefill:BatchPrefillWithPagedKVCacheWrapper",
    ("float_workspace_buffer", "kv_layout", "backend"),
    ("qo_indptr", *_PAGES, *_HEADS, "head_dim_qk", *_TYPES),
)


class Pages(NamedTuple):
    """The page table of requests of one query each; all tensors are int32."""

    indptr: Tensor
    indices: Tensor
    last: Tensor
    size: int


# A planned wrapper and the pages that it reads, by stream.
Plans = dict[int, tuple[Any, Pages]]
plans: dict[tuple[object, ...], Plans] = {}


def _refuse_capture() -> None:
    if _calls.is_capturing():
        raise Unsupported("FlashInfer plans on the host, which a graph cannot capture")


def _plan(form: _Form, wrapper: Any, q: Tensor, pages: Pages, sm_scale: float) -> None:
    """Plan for q [rows,group,D], with each row as a request of one query on one KV head."""
    rows, group, width = q.shape
    of_heads = (group, 1, width, pages.size, q.dtype, sm_scale)
    values = [pages.indptr, pages.indices, pages.last, *of_heads]
    if form is PREFILL:
        values.insert(0, torch.arange(rows + 1, dtype=torch.int32, device=q.device))
    wrapper.plan(**dict(zip(form.plans, values, strict=True)))


def _make_decode(device: torch.device, group: int, **buffers: Any) -> Any:
    """Return the decode wrapper; with buffers, its plan can be kept."""
    # Tensor cores take the heads of a group as rows of one tile.
    options = {"use_cuda_graph": bool(buffers), "use_tensor_cores": group > 1}
    return DECODE.make(device, **options, **buffers)


def _keep_plan(
    q: Tensor, count: int, size: int, last: int, sm_scale: float, step: int = 0
) -> tuple[Any, Pages]:
    """Return a kept plan for rows q [rows,group,D] of `count` pages; the first call makes it.

    size, last: keys a page, and in the last page. step: tokens between caches that are read whole,
    0 if the caller fills the table. Each stream needs its own workspace, and so its own plan. A
    capture cannot plan and uses the latest plan.
    """
    key = (q.shape, q.dtype, q.device, count, size, last, sm_scale, step)
    by_stream = plans.setdefault(key, {})
    if by_stream and _calls.is_capturing():
        return next(reversed(by_stream.values()))
    stream = _calls.current_stream()
    if stream not in by_stream:
        _refuse_capture()
        if len(plans) > MOST_PLANS:
            del plans[next(iter(plans))]
        rows, device = q.shape[0], q.device
        int32: dict[str, Any] = {"dtype": torch.int32, "device": device}
        table = _calls.first_of_heads(rows, max(step, 1), device).unsqueeze(1)
        table = (table + torch.arange(count, **int32) * size).flatten()
        indptr = torch.arange(0, (rows + 1) * count, count, **int32)
        pages = Pages(indptr, table, torch.full((rows,), last, **int32), size)
        kept = Pages(indptr.clone(), table.clone(), pages.last.clone(), size)
        wrapper = _make_decode(device, q.shape[1], **dict(zip(_BUFFERS, kept[:3], strict=True)))
        _plan(DECODE, wrapper, q, pages, sm_scale)
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # a capture on another stream may use it
        by_stream[stream] = wrapper, kept
    return by_stream[stream]


@_torch.memoised(8)
def _wrapper(stream: int, prefill: str, group: int, device: torch.device) -> Any:
    return PREFILL.make(device, backend=prefill) if prefill else _make_decode(device, group)


def _plan_rows(q: Tensor, pages: Pages, sm_scale: float, prefill: str) -> Any:
    """Return a wrapper planned for q [rows,group,D]. prefill: its backend, or empty for decode."""
    wrapper = _wrapper(_calls.current_stream(), prefill, q.shape[1], q.device)
    _plan(PREFILL if prefill else DECODE, wrapper, q, pages, sm_scale)
    return wrapper


def _check(form: _Form, q: Tensor, k: Tensor, v: Tensor) -> None:
    """Raise `Unsupported` if FlashInfer is missing or does not take these tensors."""
    form.find()
    _calls.refuse_float32(q, "FlashInfer")
    if q.shape[-1] != v.shape[-1] or q.shape[-1] not in (64, 128, 256):
        raise Unsupported("FlashInfer needs D = Dv of 64, 128 or 256")
    if k.stride() != v.stride():
        raise Unsupported("FlashInfer needs k and v laid out alike")


def _refuse_layout(fits: bool) -> None:
    if not fits:
        raise Unsupported("FlashInfer needs caches with contiguous heads")


def _view_pages(x: Tensor, page: int, token: int) -> Tensor:
    """View x as pages [pages,page,1,D] that begin every D elements, with tokens `token` elements
    apart."""
    width, first = x.shape[-1], x.storage_offset()
    there = x.untyped_storage().nbytes() // x.element_size() - first
    pages = (there - (page - 1) * token) // width
    if pages < 1:
        raise Unsupported(f"there are fewer keys than a page of {page} holds")
    return x.as_strided((pages, page, 1, width), (width, token, width, 1), first)


def _run(wrapper: Any, q: Tensor, k: Tensor, v: Tensor, page: int, token: int) -> Tensor:
    out: Tensor = wrapper.run(q, (_view_pages(k, page, token), _view_pages(v, page, token)))
    return out


@whole_cache("flashinfer", **_declared)
def flashinfer(q: Tensor, k: Tensor, v: Tensor, sm_scale: float) -> Tensor:
    """`BatchDecodeWithPagedKVCacheWrapper` over a cache that is contiguous for each head."""
    _check(DECODE, q, k, v)
    b, h, s, d = k.shape
    step = k.stride(1)  # a window is a slice of each head's cache
    _refuse_layout((k.stride(0), k.stride(2), step % d) == (h * step, d, 0))
    page = PAGE if s >= PAGE else 1
    pages = -(-s // page)
    rows = q.reshape(b * h, -1, d)
    wrapper, _ = _keep_plan(rows, pages, page, s - (pages - 1) * page, sm_scale, step // d)
    return _run(wrapper, rows, k, v, page, d).view(q.shape)


@baseline("decode_selected", "flashinfer_pages", **_declared)
def flashinfer_pages(
    q: Tensor, k: Tensor, v: Tensor, ranges: Tensor, *, block_size: int, sm_scale: float
) -> Tensor:
    """Its decode, with the selected blocks as pages, one request a KV head."""
    _check(DECODE, q, k, v)
    _refuse_layout(k.is_contiguous())
    b, h, s, d = k.shape
    n = ranges.shape[2]
    pages = min(n, -(-s // block_size))  # all that hold a token, since no block is chosen twice
    rows = q.reshape(b * h, -1, d)
    wrapper, planned = _keep_plan(rows, pages, block_size, block_size, sm_scale)
    table = planned.indices.view(-1, pages)
    first = _calls.first_of_heads(b * h, s, q.device).view(-1, 1)
    if _calls.every_block_is_whole(s, block_size, n):
        torch.add(ranges[..., 0].flatten(0, 1), first, out=table)
    else:
        # A partial block must be the last of its row.
        start, end = ranges.flatten(0, 1).unbind(-1)
        start, order = start.where(end > start, s).sort(-1)
        torch.add(start[:, :pages], first, out=table)
        planned.last.copy_((end.gather(1, order) - start)[:, pages - 1])
    return _run(wrapper, rows, k, v, block_size, d).view(q.shape)


def _block_pages(
    q: Tensor, k: Tensor, block_indices: Tensor, packing: tuple[Tensor, ...], block_size: int
) -> Pages:
    """Return the selected blocks as pages, one request for each query and KV head."""
    b, t, h, _ = k.shape
    device = q.device
    start = _torch.sequence_starts(t, packing, device)
    position = (torch.arange(t, device=device) - start).view(t, 1)
    own = (position // block_size).unsqueeze(-1)
    chosen = _calls.blocks_first(block_indices.where(block_indices <= own, -1))
    is_block = chosen >= 0
    count = is_block.sum(-1)
    final = chosen.gather(-1, (count - 1).clamp_(min=0).unsqueeze(-1)).squeeze(-1)
    last = (position + 1 - final * block_size).clamp_(max=block_size)
    batch = torch.arange(b, device=device).view(b, 1, 1, 1) * t
    head = torch.arange(h, device=device).view(h, 1)
    token = batch + start.view(t, 1, 1) + chosen * block_size
    indices = (token * h + head)[is_block].to(torch.int32)
    indptr = pad(count.flatten().cumsum(0, dtype=torch.int32), (1, 0))
    return Pages(indptr, indices, last.flatten().to(torch.int32), block_size)


def _attend_blocks(
    prefill: str, q: Tensor, k: Tensor, v: Tensor, blocks: Tensor, *packing: Tensor, **options: Any
) -> Tensor:
    _check(PREFILL if prefill else DECODE, q, k, v)
    _refuse_capture()
    h, d = k.shape[2:]
    pages = _block_pages(q, k, blocks, packing, options["block_size"])
    rows = q.reshape(-1, q.shape[2] // h, d)
    wrapper = _plan_rows(rows, pages, options["sm_scale"], prefill)
    return _run(wrapper, rows, k.contiguous(), v.contiguous(), pages.size, h * d).view(q.shape)


# FlashAttention-3 does not take overlapping pages like these.
for _name, _prefill in (("flashinfer_pages", ""), ("flashinfer_prefill", "fa2")):
    _calls.selected_blocks(_name, directions=("forward",), **_declared)(
        partial(_attend_blocks, _prefill)
    )


def _span_pages(q: Tensor, k: Tensor, ranges: Tensor) -> tuple[Pages, int]:
    """Return the pages, and the number that each row has; 0 if rows differ."""
    _refuse_layout(k.is_contiguous())
    _refuse_capture()
    start, before = disjoint(ranges, k.shape[2])
    length, counts = before.diff(dim=1), before[:, -1]
    divides = torch.stack([(length % size == 0).all() for size in PAGES_OF_SPANS])
    looked = torch.cat([divides, torch.stack([*counts.aminmax(), counts.sum()])]).tolist()
    fewest, most, total = looked[len(PAGES_OF_SPANS) :]
    if fewest == 0:
        raise Unsupported("FlashInfer takes no query without keys")
    size = next((s for s, whole in zip(PAGES_OF_SPANS, looked, strict=False) if whole), 1)
    pages = (length // size).flatten()
    ends = pages.cumsum(0)
    place = torch.arange(total // size, device=q.device)
    span = torch.searchsorted(ends, place, right=True)
    first = (start + first_keys(q, k.shape[2]).unsqueeze(1)).flatten()
    indices = (first[span] + (place - (ends - pages)[span]) * size).to(torch.int32)
    indptr = pad((counts // size).cumsum(0, dtype=torch.int32), (1, 0))
    last = torch.full((counts.numel(),), size, dtype=torch.int32, device=q.device)
    return Pages(indptr, indices, last, size), most // size if fewest == most else 0


def _attend_spans(
    prefill: str, q: Tensor, k: Tensor, v: Tensor, ranges: Tensor, **options: Any
) -> Tensor:
    _check(PREFILL if prefill else DECODE, q, k, v)
    pages, each = _span_pages(q, k, ranges)
    sm_scale = options["sm_scale"]
    group, d = q.shape[3:]
    rows = q.reshape(-1, group, d)
    if each and q.shape[1] == 1 and not prefill:
        wrapper, planned = _keep_plan(rows, each, pages.size, pages.size, sm_scale)
        planned.indices.copy_(pages.indices)
    else:
        wrapper = _plan_rows(rows, pages, sm_scale, prefill)
    return _run(wrapper, rows, k, v, pages.size, d).view(q.shape)


for _name, _prefill in (("flashinfer_pages", ""), ("flashinfer_prefill", "auto")):
    baseline("selection_ranges", _name, directions=("forward",), **_declared)(
        partial(_attend_spans, _prefill)
    )

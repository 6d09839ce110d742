"""FlashInfer on spans: the keys of a row's spans as its pages, each key once.

A page is of 64, 32 or 16 keys where that divides every span, else of one. How many pages a row has
hangs on its spans, so the host looks at six numbers in the call. Where all rows select as many keys
and there is one query a sequence, the plan is made once, as a decode step makes it; else it is made
in the call. A capture has no host to look, so neither is for graphs.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from nsabench import Unsupported, implementation
from nsabench.implementations.baselines.selection_ranges import disjoint, first_keys
from nsabench.implementations.libraries._calls import function
from nsabench.implementations.libraries._flashinfer import (
    BUFFERS,
    DECODE,
    MAKES,
    PREFILL,
    PREFILL_MAKES,
    Pages,
    Sizes,
    check,
    decode,
    paged,
    plans,
    prefill,
    refuse_capture,
)
from nsabench.packages.catalogue import FLASHINFER

SIZES = (64, 32, 16)


def _of_spans(q: Tensor, k: Tensor, ranges: Tensor) -> tuple[Pages, int]:
    """The pages, and how many each row has, 0 where they differ."""
    if not k.is_contiguous():
        raise Unsupported("FlashInfer needs caches of heads that lie one behind the other")
    refuse_capture()
    start, before = disjoint(ranges, k.shape[2])
    length, counts = before.diff(dim=1), before[:, -1]
    divides = torch.stack([(length % size == 0).all() for size in SIZES])
    looked = torch.cat([divides, torch.stack([*counts.aminmax(), counts.sum()])]).tolist()
    fewest, most, total = looked[len(SIZES) :]
    if fewest == 0:
        raise Unsupported("FlashInfer takes no query without keys")
    size = next((s for s, whole in zip(SIZES, looked, strict=False) if whole), 1)
    pages = (length // size).flatten()
    ends = pages.cumsum(0)
    place = torch.arange(total // size, device=q.device)
    span = torch.searchsorted(ends, place, right=True)
    first = (start + first_keys(q, k.shape[2]).unsqueeze(1)).flatten()
    indices = (first[span] + (place - (ends - pages)[span]) * size).to(torch.int32)
    indptr = pad((counts // size).cumsum(0, dtype=torch.int32), (1, 0))
    last = torch.full((counts.numel(),), size, dtype=torch.int32, device=q.device)
    return Pages(indptr, indices, last, size), most // size if fewest == most else 0


@implementation(
    op="selection_ranges",
    name="flashinfer_pages",
    role="baseline",
    devices=("cuda",),
    directions=("forward",),
    package=FLASHINFER,
    compiled_by="nvcc",
)
def flashinfer_spans(
    q: Tensor, k: Tensor, v: Tensor, ranges: Tensor, *, sm_scale: float, selected_len: int
) -> Tensor:
    """`BatchDecodeWithPagedKVCacheWrapper`, a request a query and group."""
    function(FLASHINFER, DECODE, *MAKES, *BUFFERS)
    check(q, k, v)
    pages, each = _of_spans(q, k, ranges)
    group, d = q.shape[3:]
    rows = q.reshape(-1, group, d)
    keys, values = (paged(x, pages.size, d) for x in (k, v))
    if each and q.shape[1] == 1:
        of_rows = (rows.shape[0], each, pages.size, pages.size, group, d, 0)
        plan = plans.get(Sizes(*of_rows, q.dtype, q.device, sm_scale))
        plan.table.copy_(pages.indices)
        wrapper = plan.wrapper
    else:
        wrapper = decode(rows, pages, sm_scale)
    out: Tensor = wrapper.run(rows, (keys, values))
    return out.view(q.shape)


@implementation(
    op="selection_ranges",
    name="flashinfer_prefill",
    role="baseline",
    devices=("cuda",),
    directions=("forward",),
    package=FLASHINFER,
    compiled_by="nvcc",
)
def flashinfer_prefill_spans(
    q: Tensor, k: Tensor, v: Tensor, ranges: Tensor, *, sm_scale: float, selected_len: int
) -> Tensor:
    """`BatchPrefillWithPagedKVCacheWrapper`, likewise, planned in the call."""
    function(FLASHINFER, PREFILL, *PREFILL_MAKES)
    check(q, k, v)
    pages, _ = _of_spans(q, k, ranges)
    group, d = q.shape[3:]
    rows = q.reshape(-1, group, d)
    keys, values = (paged(x, pages.size, d) for x in (k, v))
    out: Tensor = prefill(rows, pages, sm_scale, "auto").run(rows, (keys, values))
    return out.view(q.shape)

"""Make the spans of a row disjoint in registers, and number their keys."""

from __future__ import annotations

from ....jit.compat import tl, triton


@triton.jit
def numbered_spans(
    spans,
    before,
    r_sn,
    n_spans,
    S_KV,
    SPANS: tl.constexpr,
    SEARCH_STEPS: tl.constexpr,
):
    """Make a row's spans disjoint and number their keys 0..total - 1 without gaps.

    Return four results. Three are [SPANS], in the order of the spans: the first number of a span,
    the number after its last, and the position of a key minus its number. The fourth is total.

    If SEARCH_STEPS is not 0, ``disjoint_spans`` made ``spans`` and ``before``; only total is set.
    """
    if SEARCH_STEPS > 0:
        total = tl.load(before + n_spans).to(tl.int32)
        number = total
        stop = total
        shift = total
    else:
        i = tl.arange(0, SPANS)
        offset = spans + i.to(tl.int64) * r_sn
        # Absent spans become [S_KV, S_KV): they sort last and are empty.
        low = tl.load(offset, mask=i < n_spans, other=S_KV)
        high = tl.load(offset + 1, mask=i < n_spans, other=S_KV)
        low = tl.minimum(tl.maximum(low, 0), S_KV).to(tl.int32)
        high = tl.minimum(tl.maximum(high, 0), S_KV).to(tl.int32)
        # Load the values again along the other axis: a load is cheaper than a transpose.
        j = tl.arange(0, SPANS)
        at_j = spans + j.to(tl.int64) * r_sn
        low_j = tl.load(at_j, mask=j < n_spans, other=S_KV)
        high_j = tl.load(at_j + 1, mask=j < n_spans, other=S_KV)
        low_j = tl.minimum(tl.maximum(low_j, 0), S_KV).to(tl.int32)
        high_j = tl.minimum(tl.maximum(high_j, 0), S_KV).to(tl.int32)
        earlier = (low_j[None, :] < low[:, None]) | (
            (low_j[None, :] == low[:, None]) & (j[None, :] < i[:, None])
        )
        reach = tl.max(tl.where(earlier, high_j[None, :], 0), 1)
        low = tl.maximum(low, reach)
        count = tl.maximum(high - low, 0)
        total = tl.sum(count, 0)
        # Keys are numbered in the order in which spans are given, not in sorted order.
        stop = tl.cumsum(count, 0)
        number = stop - count
        shift = low - number
    return number, stop, shift, total


@triton.jit
def key_of(
    pos,
    valid,
    spans,
    before,
    r_sn,
    number,
    stop,
    shift,
    n_spans,
    SEARCH_STEPS: tl.constexpr,
):
    """Return the positions, int32, of the keys with numbers ``pos``; arbitrary if not ``valid``."""
    if SEARCH_STEPS > 0:
        # Find the last span whose first number is <= pos. An empty span has the same first number
        # as the next span, so an empty span is never found.
        span = pos * 0
        for step in tl.static_range(SEARCH_STEPS):
            trial = span + (1 << (SEARCH_STEPS - 1 - step))
            first = tl.load(before + trial, mask=trial < n_spans, other=2147483647)
            span = tl.where(first <= pos, trial, span)
        key = tl.load(spans + span.to(tl.int64) * r_sn, mask=valid, other=0)
        key += pos - tl.load(before + span, mask=valid, other=0)
    else:
        inside = (pos[:, None] >= number[None, :]) & (pos[:, None] < stop[None, :])
        key = pos + tl.sum(tl.where(inside, shift[None, :], 0), 1)
    return key

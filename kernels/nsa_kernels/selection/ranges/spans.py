"""Spans made disjoint, on the device and without synchronisation: in registers, or with torch."""

from __future__ import annotations

from typing import NamedTuple

import torch

from ...jit.compat import tl, triton
from ...launch import checks as check

MAX_IN_REGISTERS = 64
"""Spans a row up to which a program orders them itself; beyond, ``disjoint_spans`` does."""


def disjoint_spans(ranges: torch.Tensor, s_kv: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Sort and clip the spans of each row so that they are disjoint and their union is the same.

    Args:
        ranges: int [..., n, 2], half-open spans in any order, overlapping, reversed or out of
            bounds. Not written.
        s_kv: number of keys; spans are clamped to [0, s_kv].

    Returns:
        ``start`` int32 [..., n] and ``before`` int32 [..., n + 1], both contiguous. Key number
        ``p`` of the row, with ``before[i] <= p < before[i + 1]``, is at
        ``start[i] + p - before[i]``; ``before[n]`` is the number of keys selected. Empty spans
        stay, with length 0.
    """
    clamped = ranges.clamp(0, s_kv).to(torch.int32)
    start, order = clamped[..., 0].sort(dim=-1, stable=True)
    end = clamped[..., 1].gather(-1, order)
    reach = torch.cummax(torch.nn.functional.pad(end, (1, 0)), -1).values
    start = torch.maximum(start, reach[..., :-1])
    count = (end - start).clamp_min_(0)
    before = torch.nn.functional.pad(count.cumsum(-1, dtype=torch.int32), (1, 0))
    return start.contiguous(), before.contiguous()


class Spans(NamedTuple):
    """What kernels hand to ``numbered_spans`` and ``key_of``: either spans [B,S,G,n,2] as they are,
    ``padded`` to so many, with no steps of a search (``before`` is then not read), or
    ``disjoint_spans`` of them and the steps that find one."""

    spans: torch.Tensor
    before: torch.Tensor
    strides: tuple[int, ...]
    padded: int
    search_steps: int


def kernel_spans(ranges: torch.Tensor, s_kv: int) -> Spans:
    """Spans as kernels take them: up to MAX_IN_REGISTERS a row are made disjoint there."""
    n = ranges.shape[3]
    if n <= MAX_IN_REGISTERS:
        return Spans(ranges, ranges, ranges.stride(), max(check.next_power_of_2(n), 2), 0)
    start, before = disjoint_spans(ranges, s_kv)
    return Spans(start, before, (*start.stride(), 0), 1, (n - 1).bit_length())


@triton.jit
def numbered_spans(
    spans,
    before,
    r_sn,
    r_se,
    n_spans,
    S_KV,
    SPANS: tl.constexpr,
    SEARCH_STEPS: tl.constexpr,
):
    """A row's spans, disjoint, and their keys numbered 0..total without gaps: of each span the
    first number, the one behind the last and key minus number, [SPANS] in the order of the spans;
    total. With SEARCH_STEPS spans and before are those of ``disjoint_spans``, and but for total the
    results are nothing.
    """
    if SEARCH_STEPS > 0:
        total = tl.load(before + n_spans).to(tl.int32)
        number = total
        stop = total
        shift = total
    else:
        i = tl.arange(0, SPANS)
        at = spans + i.to(tl.int64) * r_sn
        # Absent spans become [S_KV, S_KV): they sort last and are empty.
        low = tl.load(at, mask=i < n_spans, other=S_KV)
        high = tl.load(at + r_se, mask=i < n_spans, other=S_KV)
        low = tl.minimum(tl.maximum(low, 0), S_KV).to(tl.int32)
        high = tl.minimum(tl.maximum(high, 0), S_KV).to(tl.int32)
        # The same values once more along the other axis: a load is cheaper than a transpose.
        j = tl.arange(0, SPANS)
        at_j = spans + j.to(tl.int64) * r_sn
        low_j = tl.load(at_j, mask=j < n_spans, other=S_KV)
        high_j = tl.load(at_j + r_se, mask=j < n_spans, other=S_KV)
        low_j = tl.minimum(tl.maximum(low_j, 0), S_KV).to(tl.int32)
        high_j = tl.minimum(tl.maximum(high_j, 0), S_KV).to(tl.int32)
        earlier = (low_j[None, :] < low[:, None]) | (
            (low_j[None, :] == low[:, None]) & (j[None, :] < i[:, None])
        )
        reach = tl.max(tl.where(earlier, high_j[None, :], 0), 1)
        low = tl.maximum(low, reach)
        count = tl.maximum(high - low, 0)
        total = tl.sum(count, 0)
        # Numbers follow the index order of the spans.
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
    """The keys with the numbers ``pos``, int32; of those that are not valid, any."""
    if SEARCH_STEPS > 0:
        # The last span whose first number is <= pos; empty spans share a number with the next one
        # and are passed over.
        found = pos * 0
        for step in tl.static_range(SEARCH_STEPS):
            trial = found + (1 << (SEARCH_STEPS - 1 - step))
            first = tl.load(before + trial, mask=trial < n_spans, other=2147483647)
            found = tl.where(first <= pos, trial, found)
        key = tl.load(spans + found.to(tl.int64) * r_sn, mask=valid, other=0)
        key += pos - tl.load(before + found, mask=valid, other=0)
    else:
        inside = (pos[:, None] >= number[None, :]) & (pos[:, None] < stop[None, :])
        key = pos + tl.sum(tl.where(inside, shift[None, :], 0), 1)
    return key

"""Spans made disjoint with torch operations, on the device and without synchronisation."""

from __future__ import annotations

import torch


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

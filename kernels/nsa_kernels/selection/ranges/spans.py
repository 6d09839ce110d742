"""Check the spans of a call, and bring them to the form that kernels take: unchanged, or made
disjoint by torch on the device."""

from __future__ import annotations

from typing import NamedTuple

import torch

from ...launch.sizes import next_power_of_2, strides

MAX_IN_REGISTERS = 64
"""The most spans of a row that a kernel itself makes disjoint. If there are more, torch does it."""


def check_ranges(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    ranges: torch.Tensor,
    paged: bool = False,
) -> torch.Tensor:
    """Check that inputs of ``selection_ranges`` fit together. Return ranges as [B,S,G,n,2].

    ``paged``: k and v [pages,G,page,...] are a pool of pages.

    Raises:
        TypeError: ranges is not int32 or int64.
        ValueError: shapes or devices do not fit together.
    """
    if ranges.dim() == 4:
        ranges = ranges.unsqueeze(0)
        ranges = ranges.expand(q.shape[0], -1, -1, -1, -1)
    if not (
        q.dim() == 5
        and k.dim() == v.dim() == 4
        and k.shape[:3] == v.shape[:3]
        and (paged or k.shape[0] == q.shape[0])
        and k.shape[1] == q.shape[2]
        and k.shape[3] == q.shape[4]
        and ranges.dim() == 5
        and ranges.shape[:3] == q.shape[:3]
        and ranges.shape[4] == 2
        and q.shape[3] >= 1
    ):
        raise ValueError(
            "selection_ranges: expected q [B,S,G,h,D], k [B,G,S_kv,D], v [B,G,S_kv,Dv], "
            f"ranges [B,S,G,n,2] or [S,G,n,2] with h >= 1; got {tuple(q.shape)}, "
            f"{tuple(k.shape)}, {tuple(v.shape)}, {tuple(ranges.shape)}"
        )
    if ranges.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"selection_ranges: ranges must be int32 or int64, got {ranges.dtype}")
    if ranges.device != q.device:
        raise ValueError(f"selection_ranges: ranges is on {ranges.device}, q on {q.device}")
    if k.shape[2] >= 2**30:
        raise ValueError(f"selection_ranges: S_kv must be below 2**30, got {k.shape[2]}")
    return ranges


def disjoint_spans(
    ranges: torch.Tensor, s_kv: int, lengths: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sort and clip the spans of each row so that they are disjoint and their union is the same.

    Args:
        ranges: int [..., n, 2], half-open spans in any order, overlapping, reversed or out of
            bounds. They are not changed.
        s_kv: number of keys; spans are clamped to [0, s_kv].
        lengths: int32 [B], the number of keys of each batch entry, which also bounds the spans.

    Returns:
        ``start`` int32 [..., n] and ``before`` int32 [..., n + 1], both contiguous. Key number
        ``p`` of the row, with ``before[i] <= p < before[i + 1]``, is at
        ``start[i] + p - before[i]``; ``before[n]`` is the number of keys selected. Empty spans
        stay, with length 0.
    """
    clamped = ranges.clamp(0, s_kv).to(torch.int32)
    if lengths is not None:
        clamped = clamped.minimum(lengths.clamp(min=0).view(-1, *[1] * (ranges.dim() - 1)))
    start, order = clamped[..., 0].sort(dim=-1, stable=True)
    end = clamped[..., 1].gather(-1, order)
    reach = torch.cummax(torch.nn.functional.pad(end, (1, 0)), -1).values
    start = torch.maximum(start, reach[..., :-1])
    count = (end - start).clamp_min_(0)
    before = torch.nn.functional.pad(count.cumsum(-1, dtype=torch.int32), (1, 0))
    return start.contiguous(), before.contiguous()


class Spans(NamedTuple):
    """The arguments of ``numbered_spans`` and ``key_of``.

    If ``search_steps`` is 0, ``spans`` are [B,S,G,n,2] in any order. The kernel pads the spans of a
    row to ``padded``, makes them disjoint, and does not read ``before``. Otherwise ``spans``
    [B,S,G,n] and ``before`` [B,S,G,n + 1] are ``start`` and ``before`` of ``disjoint_spans``, and a
    search for the span of a key takes ``search_steps`` steps.
    """

    spans: torch.Tensor
    before: torch.Tensor
    strides: tuple[int, ...]
    padded: int
    search_steps: int


def kernel_spans(ranges: torch.Tensor, s_kv: int, lengths: torch.Tensor | None = None) -> Spans:
    """Return spans in the form that kernels take, disjoint if more than MAX_IN_REGISTERS."""
    n = ranges.shape[3]
    if n <= MAX_IN_REGISTERS:
        return Spans(ranges, ranges, strides(ranges), max(next_power_of_2(n), 2), 0)
    start, before = disjoint_spans(ranges, s_kv, lengths)
    return Spans(start, before, start.stride(), 1, (n - 1).bit_length())

"""Argument checks of ``selection_ranges``."""

from __future__ import annotations

import torch


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

"""The library's kernels as nsabench candidates (entry point of ``nsabench.implementations``)."""

from __future__ import annotations

import torch

import nsa_kernels
from nsabench import implementation

DEVICES = ("cuda", "interpreter")


@implementation(op="selection_rows", name="rows_group", role="candidate", devices=DEVICES)
def rows_group(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, sm_scale: float
) -> torch.Tensor:
    """All heads of a row in one program, split over the keys when rows are few."""
    return nsa_kernels.selection_rows(q, k, v, sm_scale=sm_scale)[0]


@implementation(op="selection_rows", name="rows_per_head", role="candidate", devices=DEVICES)
def rows_per_head(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, sm_scale: float
) -> torch.Tensor:
    """One program a head, kept for comparison."""
    return nsa_kernels.selection_rows_per_head(q, k, v, sm_scale=sm_scale)[0]


@implementation(op="selection_varlen", name="varlen_items", role="candidate", devices=DEVICES)
def varlen_items(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens: torch.Tensor,
    *,
    sm_scale: float,
) -> torch.Tensor:
    """Packed keys cut into equal work items, so that one long row does not hold up the rest."""
    return nsa_kernels.selection_varlen(q, k, v, cu_seqlens, sm_scale=sm_scale)[0]


@implementation(op="selection_ranges", name="ranges_in_place", role="candidate", devices=DEVICES)
def ranges_in_place(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    ranges: torch.Tensor,
    *,
    sm_scale: float,
) -> torch.Tensor:
    """Spans read where they are, without packing."""
    return nsa_kernels.selection_ranges(q, k, v, ranges, sm_scale=sm_scale)[0]

"""The kernels of ``selection_rows``, as nsabench candidates."""

from __future__ import annotations

import torch

from nsabench import implementation

from ...selection import selection_rows, selection_rows_per_head
from .record import DEVICES, config_of


@implementation(
    op="selection_rows",
    name="rows_group",
    devices=DEVICES,
    compiled_by="triton",
    config=config_of("selection_rows"),
)
def rows_group(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, sm_scale: float
) -> torch.Tensor:
    """Run up to 64 heads of a row in one program, and split the keys if there are few rows."""
    return selection_rows(q, k, v, sm_scale=sm_scale)[0]


@implementation(
    op="selection_rows",
    name="rows_per_head",
    role="candidate",
    devices=DEVICES,
    compiled_by="triton",
)
def rows_per_head(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, sm_scale: float
) -> torch.Tensor:
    """Run one program for each head. This is kept for comparison."""
    return selection_rows_per_head(q, k, v, sm_scale=sm_scale)[0]

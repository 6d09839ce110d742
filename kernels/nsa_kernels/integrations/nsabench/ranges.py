"""The kernel of ``selection_ranges``, as an nsabench candidate."""

from __future__ import annotations

import torch

from nsabench import implementation

from ...selection import selection_ranges
from .record import DEVICES, config_of


@implementation(
    op="selection_ranges",
    name="ranges_in_place",
    devices=DEVICES,
    compiled_by="triton",
    config=config_of("selection_ranges"),
)
def ranges_in_place(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    ranges: torch.Tensor,
    *,
    sm_scale: float,
    selected_len: int,
) -> torch.Tensor:
    """Read spans in place, without packing."""
    out = selection_ranges(q, k, v, ranges, sm_scale=sm_scale, selected_len=selected_len)
    return out[0]

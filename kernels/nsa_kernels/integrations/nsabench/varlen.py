"""The kernel of ``selection_varlen``, as an nsabench candidate."""

from __future__ import annotations

import torch

from nsabench import implementation

from ...selection import selection_varlen
from .record import DEVICES, config_of


@implementation(
    op="selection_varlen",
    name="varlen_items",
    devices=DEVICES,
    compiled_by="triton",
    config=config_of("selection_varlen"),
)
def varlen_items(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens: torch.Tensor,
    *,
    sm_scale: float,
    max_seqlen: int,
) -> torch.Tensor:
    """Cut packed keys into equal work items, so that one long row does not delay the rest."""
    out = selection_varlen(q, k, v, cu_seqlens, sm_scale=sm_scale, max_seqlen=max_seqlen)
    return out[0]

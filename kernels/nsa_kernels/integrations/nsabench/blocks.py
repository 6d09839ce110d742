"""The kernels of ``selection_blocks``, as nsabench candidates."""

from __future__ import annotations

import torch

from nsabench import implementation

from ...selection import block_selection_attention
from .record import DEVICES


@implementation(op="selection_blocks", name="blocks", devices=DEVICES, compiled_by="triton")
def blocks(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    block_indices: torch.Tensor,
    cu_seqlens: torch.Tensor | None = None,
    *,
    sm_scale: float,
    block_size: int,
) -> torch.Tensor:
    """Give each program a block of keys and queries that chose it, then merge partial results."""
    out = block_selection_attention(
        q,
        k,
        v,
        block_indices,
        block_size=int(block_size),
        sm_scale=sm_scale,
        cu_seqlens=cu_seqlens,
    )
    assert isinstance(out, torch.Tensor)
    return out


@implementation(
    op="selection_blocks",
    name="blocks_query_major",
    role="baseline",
    devices=DEVICES,
    compiled_by="triton",
    directions=("forward",),
)
def blocks_query_major(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    block_indices: torch.Tensor,
    cu_seqlens: torch.Tensor | None = None,
    *,
    sm_scale: float,
    block_size: int,
) -> torch.Tensor:
    """Give each program one query, and read every block that it chose."""
    return torch.ops.nsa_kernels.block_query_major(
        q, k, v, block_indices, cu_seqlens, int(block_size), sm_scale
    )[0]

"""NSA attention as nsabench calls it: all three branches and their gated sum."""

from __future__ import annotations

import torch

import nsa_kernels
from nsabench import implementation

from .record import DEVICES


@implementation(op="nsa_attention", name="nsa", devices=DEVICES, compiled_by="triton")
def nsa(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    gates: torch.Tensor,
    cu_seqlens: torch.Tensor | None = None,
    *,
    block: int,
    stride: int,
    block_size: int,
    n_selected: int,
    window: int,
    sm_scale: float,
    max_seqlen: int,
) -> torch.Tensor:
    """Run compression, block scores, top-n, blocks, the window and the gated sum in sequence."""
    return nsa_kernels.nsa_attention(
        q,
        k,
        v,
        gates,
        block=block,
        stride=stride,
        block_size=block_size,
        n_selected=n_selected,
        window=window,
        sm_scale=sm_scale,
        cu_seqlens=cu_seqlens,
    )

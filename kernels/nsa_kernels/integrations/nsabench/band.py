"""The kernels of the sliding window and of compressed keys, as nsabench candidates."""

from __future__ import annotations

import torch

from nsabench import Unsupported, implementation

from ... import band
from ...scoring import compressed_attention_with_scores
from .record import DEVICES


@implementation(op="sliding_window", name="band", devices=DEVICES, compiled_by="triton")
def sliding_window(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens: torch.Tensor | None = None,
    *,
    window: int,
    sm_scale: float,
    max_seqlen: int,
) -> torch.Tensor:
    """Attend tile by tile, and mask only the tiles at the edges of the window."""
    return band.sliding_window(q, k, v, cu_seqlens, window=window, sm_scale=sm_scale)[0]


@implementation(op="compressed", name="band", devices=DEVICES, compiled_by="triton")
def compressed(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens: torch.Tensor | None = None,
    cu_keys: torch.Tensor | None = None,
    *,
    block: int,
    stride: int,
    sm_scale: float,
    max_seqlen: int,
) -> torch.Tensor:
    return band.compressed_attention(
        q, k, v, cu_seqlens, cu_keys, block=block, stride=stride, sm_scale=sm_scale
    )[0]


@implementation(op="compressed", name="band_with_scores", devices=DEVICES, compiled_by="triton")
def compressed_with_scores(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens: torch.Tensor | None = None,
    cu_keys: torch.Tensor | None = None,
    *,
    block: int,
    stride: int,
    sm_scale: float,
    max_seqlen: int,
) -> torch.Tensor:
    """Also compute the block scores that selection needs. No baseline does that."""
    if cu_seqlens is not None or cu_keys is not None:
        raise Unsupported("block scores cannot be computed for packed sequences")
    return compressed_attention_with_scores(q, k, v, block=block, stride=stride, sm_scale=sm_scale)[
        0
    ]

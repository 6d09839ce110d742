"""Block scores of one token, from the compressed keys and the LSE, or from stored logits."""

from __future__ import annotations

import torch

from ...launch.device import dependent_launch, device_limits, launch_options
from ...launch.shares import Shares
from ...launch.sizes import cdiv, next_power_of_2, scale_log2, strides
from .compressed import Lengths
from .kernels.scores import decode_scores_kernel, decode_scores_of_logits_kernel


def launch_scores(
    q: torch.Tensor,
    k_cmp: torch.Tensor,
    lse: torch.Tensor,
    n_blocks: int,
    block: int,
    stride: int,
    block_size: int,
    sm_scale: float | None,
    cache_seqlens: torch.Tensor | None = None,
) -> torch.Tensor:
    """Make the launch of ``decode_scores``. The inputs have been checked."""
    b, hq, d = q.shape
    h, n = k_cmp.shape[1:3]
    scores = torch.empty((b, h, n_blocks), dtype=torch.float32, device=q.device)
    if scores.numel() == 0:
        return scores
    wide = 16 if q.element_size() == 4 or d > 128 else 64
    decode_scores_kernel[(b * h, cdiv(n_blocks, wide))](
        *(q, k_cmp, lse.contiguous(), scores, lse if cache_seqlens is None else cache_seqlens),
        *strides(q, k_cmp),
        *(n, h, hq // h, n_blocks, scale_log2(sm_scale, d)),
        D=d,
        BLOCK_D=next_power_of_2(d),
        BLOCK_G=max(16, next_power_of_2(hq // h)),
        BLOCK_J=wide,
        REACH=block // stride,
        SPAN=block_size // stride,
        LENGTHS=cache_seqlens is not None,
        STRIDE=1 if cache_seqlens is None else stride,
        num_warps=4,
        num_stages=1,
    )
    return scores


def launch_scores_of_logits(
    logits: torch.Tensor,
    shares: Shares,
    n: int,
    b: int,
    n_blocks: int,
    block: int,
    stride: int,
    block_size: int,
    lengths: Lengths | None = None,
) -> torch.Tensor:
    """Return scores [B, H, n_blocks] from logits [B * H, group, padded]. Only the first ``n`` keys
    count, and with ``lengths`` only keys that end within an entry's tokens."""
    rows, group, padded = logits.shape
    scores = torch.empty((b, rows // b, n_blocks), dtype=torch.float32, device=logits.device)
    span = block_size // stride
    places = next_power_of_2(span)
    wide = min(32, max(1, 128 // places))  # with more, registers spill
    tiles = cdiv(n_blocks, wide)
    # If many programs waited, they would take multiprocessors from the launch that they wait for.
    few = 2 * tiles * rows <= device_limits(logits.device).processors
    pdl = few and dependent_launch(logits.device)
    decode_scores_of_logits_kernel[(rows, tiles)](
        *(logits, shares.lse, shares.plse, scores),
        shares.table_or_any,
        shares.lse if lengths is None else lengths.tokens,
        *(n, padded, group, n_blocks, shares.splits, rows // b),
        BLOCK_G=next_power_of_2(group),
        BLOCK_J=wide,
        BLOCK_P=places,
        BLOCK_S=next_power_of_2(shares.splits) if shares.splits > 1 else 0,
        REACH=block // stride,
        SPAN=span,
        LENGTHS=lengths is not None,
        STRIDE=1 if lengths is None else stride,
        PDL=pdl,
        num_warps=4,
        num_stages=1,
        **launch_options(pdl),
    )
    return scores

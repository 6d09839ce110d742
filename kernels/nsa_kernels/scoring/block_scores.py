"""Scores of selection blocks, from compressed attention (arXiv 2502.11089, equations 8 to 10)."""

from __future__ import annotations

import torch

from ..band.compressed import OP, attend_compressed
from ..band.config import Tiles
from ..band.geometry import Band
from ..launch.checks import check_strides, softmax_scale
from ..launch.device import on_its_device
from ..launch.mode import traced
from ..launch.sizes import LOG2_E, cdiv, next_power_of_2, strides
from .kernels.block_scores import block_scores_kernel


def compressed_attention_with_scores(
    q: torch.Tensor,
    k_cmp: torch.Tensor,
    v_cmp: torch.Tensor,
    *,
    block: int = 32,
    stride: int = 16,
    block_size: int = 64,
    sm_scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``compressed_attention`` and, from its LSE, the scores that selection ranks blocks by.

    Args:
        block_size: tokens of a selection block; a multiple of ``stride``, as ``block`` must be.
        The others: as ``compressed_attention``.

    Returns:
        out, lse, and scores float32 [B, T, H, ceil(T / block_size)]: for each selection block, the
        weights of the compressed keys that share tokens with it, times the strides they share,
        summed over the group's heads. Not differentiable.

    Raises:
        TypeError, ValueError: as ``compressed_attention``; ``stride`` does not divide the others.
    """
    check_strides(OP, block, stride, block_size)
    scale = softmax_scale(OP, q, sm_scale)
    out, lse = attend_compressed(q, k_cmp, v_cmp, None, None, block, stride, scale)
    score = _scores if traced(q) else _launch_scores
    scores = score(q.detach(), k_cmp.detach(), lse.detach(), block, stride, block_size, scale)
    return out, lse.transpose(1, 2), scores


@on_its_device
def block_scores(
    q: torch.Tensor,
    k: torch.Tensor,
    lse: torch.Tensor,
    band: Band,
    block_size: int,
    sm_scale: float,
    tiles: Tiles | None = None,
) -> torch.Tensor:
    """float32 [B, T, H, ceil(T / block_size)], 0 where a query sees no key of a block.

    Args:
        q: [B, T, HQ, D]. k: compressed keys [B, N, H, D].
        lse: [B, HQ, T] float32, of the compressed attention, natural.
        band: dense and without a window; its stride divides ``block_size`` and its block.
    """
    b, t, hq, d = q.shape
    n, h = k.shape[1:3]
    n_blocks = cdiv(t, block_size)
    scores = torch.empty((b, t, h, n_blocks), dtype=torch.float32, device=q.device)
    if scores.numel() == 0:
        return scores
    # Of 64 queries, which are staged, and up to 128 blocks: those of the first half of a sequence
    # see too few blocks to fill more.
    wide = min(128, max(16, next_power_of_2(n_blocks)))
    small = d > 128 or q.element_size() == 4
    tiles = tiles or (Tiles(32, 16, 4, 1) if small else Tiles(64, wide, 4, 3))
    grid = (cdiv(t, tiles.block_m), cdiv(n_blocks, tiles.block_n), b * h)
    block_scores_kernel[grid](
        *(q, k, lse, scores),
        *strides(q, k),
        *(t, n, hq, hq // h, n_blocks, sm_scale * LOG2_E),
        D=d,
        BLOCK_D=next_power_of_2(d),
        BLOCK_M=tiles.block_m,
        BLOCK_J=tiles.block_n,
        BLOCK=band.block,
        STRIDE=band.stride,
        SPAN=block_size // band.stride,
        PRECISION="ieee",
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
    )
    return scores


def _launch_scores(
    q: torch.Tensor,
    k: torch.Tensor,
    lse: torch.Tensor,
    block: int,
    stride: int,
    block_size: int,
    sm_scale: float,
) -> torch.Tensor:
    return block_scores(q, k, lse, Band(block, stride, 0), block_size, sm_scale)


_scores = torch.library.custom_op("nsa_kernels::block_scores", _launch_scores, mutates_args=())


@_scores.register_fake
def _(
    q: torch.Tensor,
    k: torch.Tensor,
    lse: torch.Tensor,
    block: int,
    stride: int,
    block_size: int,
    sm_scale: float,
) -> torch.Tensor:
    b, t = q.shape[:2]
    return q.new_empty((b, t, k.shape[2], -(-t // block_size)), dtype=torch.float32)

"""Scores of selection blocks, from compressed attention (arXiv 2502.11089, equations 8 to 10)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ..band.api import OP
from ..band.attend import attend
from ..band.geometry import Band, Behind
from ..launch.checks import check_strides, softmax_scale
from ..launch.device import on_its_device
from ..launch.mode import traced
from ..launch.operators import operator
from ..launch.replay import replayed
from ..launch.shares import clear
from ..launch.sizes import LOG2_E, batches, cdiv, next_power_of_2, strides
from . import hopper
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
    """Compute ``compressed_attention`` and, from its LSE, the scores by which blocks are selected.

    Args:
        block_size: tokens in a selection block. ``stride`` must divide ``block`` and
            ``block_size``. All other arguments: as ``compressed_attention``.

    Returns:
        out, lse, and scores float32 [B, T, H, ceil(T / block_size)]. The score of a selection block
        is a sum over the group's heads, and over the compressed keys that share tokens with the
        block. Each term is the weight times the number of shared strides. Scores have no gradient.

    Raises:
        TypeError, ValueError: as ``compressed_attention``. ValueError also for a wrong ``stride``.
    """
    check_strides(OP, block, stride, block_size)
    scale = softmax_scale(OP, q, sm_scale)
    out, lse = attend(q, k_cmp, v_cmp, None, None, block, stride, 0, scale)
    score = _scores if traced(q) else _launch_scores
    scores = score(q.detach(), k_cmp.detach(), lse.detach(), block, stride, block_size, scale)
    return out, lse.transpose(1, 2), scores


@dataclass(frozen=True, slots=True)
class ScoreTiles:
    """Queries and compressed keys of a tile, and how the program is launched."""

    queries: int
    keys: int
    num_warps: int
    num_stages: int


PADDED = 16
"""The number of blocks of a tile is padded to at least this, which tensor cores need."""


def _tiles(q: torch.Tensor) -> ScoreTiles:
    if q.shape[3] > 128 or q.element_size() == 4:
        return ScoreTiles(32, 64, 4, 1)
    return ScoreTiles(64, 128, 4, 3)


@on_its_device
def block_scores(
    q: torch.Tensor,
    k: torch.Tensor,
    lse: torch.Tensor,
    band: Band,
    block_size: int,
    sm_scale: float,
    cu_seqlens: torch.Tensor | None = None,
    cu_keys: torch.Tensor | None = None,
    visible: bool = False,
    tiles: ScoreTiles | None = None,
    behind: Behind | None = None,
    tokens: int = 0,
) -> torch.Tensor:
    """Return float32 [B, T, H, ceil(T / block_size)], 0 if a query sees no key of the block.

    Args:
        q: [B, T, HQ, D]. k: compressed keys [B, N, H, D].
        lse: [B, HQ, T] float32, of the compressed attention, natural.
        band: which compressed keys a query sees. Its stride divides ``block_size`` and its block.
        cu_seqlens, cu_keys: int32 [sequences + 1], of sequences packed in B = 1 and of their
            compressed keys; blocks are counted from the beginning of a query's sequence.
        visible: whether scores of blocks that begin after the query may be left unwritten.
        behind: if given, queries are the last tokens of their sequences, and scores are
            [B, T, H, ceil(``tokens`` / block_size)].
    """
    b, t, hq, d = q.shape
    n, h = k.shape[1:3]
    n_blocks = cdiv(t if behind is None else tokens, block_size)
    scores = torch.empty((b, t, h, n_blocks), dtype=torch.float32, device=q.device)
    if scores.numel() == 0:
        return scores
    alone = cu_seqlens is None and behind is None
    if alone and tiles is None and hopper.fits(q, k, band, block_size):
        if not visible:
            clear(scores)
        hopper.launch_scores(q, k, lse, scores, sm_scale)
        return scores
    tiles = tiles or _tiles(q)
    span, reach = block_size // band.stride, band.block // band.stride
    blocks, chunks = (tiles.keys - reach + 1) // span, 1
    if blocks < 1:  # more keys in a block than in a tile
        blocks = PADDED
        chunks = cdiv(blocks * span + reach - 1, tiles.keys)
    sequences = 0 if cu_seqlens is None else cu_seqlens.shape[0] - 1
    packed = cu_seqlens is not None and cu_keys is not None
    cu_tokens = None if behind is None else behind.cu_tokens
    for some in batches(b, h):
        block_scores_kernel[
            (cdiv(t, tiles.queries), cdiv(n_blocks, blocks), (some.stop - some.start) * h)
        ](
            *(q[some], k[some], lse[some]),
            *(cu_seqlens if packed else lse, cu_keys if packed else lse),
            *(lse if cu_tokens is None else cu_tokens, scores[some]),
            *strides(q, k),
            *(t, n, hq, hq // h, n_blocks, sequences),
            *(0 if behind is None or packed else behind.first, sm_scale * LOG2_E),
            D=d,
            BLOCK_D=next_power_of_2(d),
            BLOCK_M=tiles.queries,
            KEYS=tiles.keys,
            CHUNKS=chunks,
            BLOCKS=blocks,
            PAD_BLOCKS=max(PADDED, next_power_of_2(blocks)),
            REACH=reach,
            SPAN=span,
            STRIDE=band.stride,
            PACKED=packed,
            STEPS=max(1, sequences.bit_length()),
            BEHIND=behind is not None,
            VISIBLE=visible,
            num_warps=tiles.num_warps,
            num_stages=tiles.num_stages,
        )
    return scores


@replayed
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


def _fake_scores(q: torch.Tensor, k: torch.Tensor, *others: Any) -> torch.Tensor:
    (b, t), block_size = q.shape[:2], others[3]
    return q.new_empty((b, t, k.shape[2], -(-t // block_size)), dtype=torch.float32)


_scores = operator("nsa_kernels::block_scores", _launch_scores, _fake_scores)

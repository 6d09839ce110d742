"""Which blocks a query selects: the forced ones, then those of the highest scores.

Ties go to the lowest index, here and in everything that must agree with it.
"""

from __future__ import annotations

import torch

from . import _checks as check
from ._band_launch import traced
from ._triton_compat import tl, triton

LOCAL_BLOCKS = 2
"""Blocks up to the query's own that are always selected, as is the first."""


@triton.jit
def select_blocks_kernel(
    scores_ptr,
    ranges_ptr,
    T,
    H,
    n_blocks,
    first_position,
    COUNT: tl.constexpr,
    SIZE: tl.constexpr,
    LOCAL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Program (query and head of a batch): ranges int32 [B,T,H,COUNT,2] of scores [B,T,H,n_blocks].

    A block that begins behind the query is never taken; what is left over is empty, (0, 0).
    """
    row = tl.program_id(0).to(tl.int64)
    position = first_position + (tl.program_id(0) // H) % T
    blocks = tl.arange(0, BLOCK)
    score = tl.load(scores_ptr + row * n_blocks + blocks, mask=blocks < n_blocks, other=0.0)
    own = position // SIZE
    forced = (blocks == 0) | (blocks > own - LOCAL)
    score = tl.where(forced, float("inf"), score)
    score = tl.where(blocks <= own, score, float("-inf"))
    for i in range(COUNT):
        best = tl.max(score, 0)
        chosen = tl.min(tl.where(score == best, blocks, BLOCK), 0)
        some = best > float("-inf")
        start = tl.where(some, chosen * SIZE, 0)
        end = tl.where(some, tl.minimum(chosen * SIZE + SIZE, position + 1), 0)
        tl.store(ranges_ptr + (row * COUNT + i) * 2, start)
        tl.store(ranges_ptr + (row * COUNT + i) * 2 + 1, end)
        score = tl.where(blocks == chosen, float("-inf"), score)


def select_blocks(
    scores: torch.Tensor,
    count: int,
    *,
    block_size: int = 64,
    first_position: int = 0,
    local: int = LOCAL_BLOCKS,
) -> torch.Tensor:
    """The ``count`` blocks that each query selects, as spans of tokens up to its own position.

    The first block and the ``local`` last ones are always in; then come the highest scores, the
    lowest index where scores are equal.

    Args:
        scores: float32 [B, T, H, n_blocks], not negative, contiguous; up to 65536 blocks.
        first_position: of the first of the T queries.

    Returns:
        int32 [B, T, H, count, 2], half-open, in the order in which blocks were chosen; empty spans
        (0, 0) where there are fewer.

    Raises:
        ValueError: ``count`` does not hold the forced blocks, too many blocks, wrong device.
    """
    if traced(scores):
        found: torch.Tensor = _operator(scores, count, block_size, first_position, local)
        return found
    return _launch(scores, count, block_size, first_position, local)


@check.on_its_device
def _launch(
    scores: torch.Tensor, count: int, block_size: int, first_position: int, local: int
) -> torch.Tensor:
    b, t, h, n_blocks = scores.shape
    check.check_device("select_blocks", scores)
    check.require(
        count > local, f"select_blocks: count must be over local={local} for the first; got {count}"
    )
    check.require(n_blocks <= 65536, f"select_blocks: at most 65536 blocks; got {n_blocks}")
    ranges = torch.empty((b, t, h, count, 2), dtype=torch.int32, device=scores.device)
    if ranges.numel() == 0:
        return ranges
    width = max(16, check.next_power_of_2(n_blocks))
    select_blocks_kernel[(b * t * h,)](
        scores.contiguous(),
        ranges,
        t,
        h,
        n_blocks,
        first_position,
        COUNT=count,
        SIZE=block_size,
        LOCAL=local,
        BLOCK=width,
        num_warps=max(1, min(8, width // 256)),
        num_stages=1,
    )
    return ranges


_operator = torch.library.custom_op("nsa_kernels::select_blocks", _launch, mutates_args=())


@_operator.register_fake
def _(
    scores: torch.Tensor, count: int, block_size: int, first_position: int, local: int
) -> torch.Tensor:
    return scores.new_empty((*scores.shape[:3], count, 2), dtype=torch.int32)

"""Select blocks for each query: the forced ones, then the highest scores.

Ties go to the lowest index, here and in everything that must agree with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ..launch.checks import (
    MAX_BLOCKS,
    MAX_TOKENS,
    check_device,
    check_lengths,
    check_transforms,
    check_whole,
    require,
)
from ..launch.device import device_limits, launch_options, on_its_device
from ..launch.mode import traced
from ..launch.operators import operator
from ..launch.replay import replayed
from ..launch.sizes import cdiv, next_power_of_2
from .kernels.top_n import select_blocks_kernel

LOCAL_BLOCKS = 2
"""Blocks up to the query's own that are always selected, as is the first."""


def select_blocks(
    scores: torch.Tensor,
    count: int,
    *,
    block_size: int = 64,
    first_position: int | torch.Tensor = 0,
    local: int = LOCAL_BLOCKS,
) -> torch.Tensor:
    """The ``count`` blocks that each query selects, as spans of tokens up to its own position.

    The first block and the ``local`` last ones are always in; then come the highest scores, the
    lowest index where scores are equal.

    Args:
        scores: float32 [B, T, H, n_blocks], up to 65536 blocks, that hold the queries; what is
            negative or NaN counts as 0.
        first_position: of the first of the T queries; a number, or int32 [B] on the device, one an
            entry. Then queries before 0 select nothing, and queries behind the last block select
            as its last token does.

    Returns:
        int32 [B, T, H, count, 2], half-open, in the order in which blocks were chosen; empty spans
        (0, 0) where there are fewer.

    Raises:
        TypeError: scores, or positions, of another dtype.
        ValueError: ``count`` does not hold the forced blocks, scores of other dimensions, fewer
            blocks than the queries need, or too many, wrong device.
    """
    positions = first_position if isinstance(first_position, torch.Tensor) else None
    first = 0 if isinstance(first_position, torch.Tensor) else first_position
    for name, value, least, most in (
        ("count", count, 1, MAX_BLOCKS),
        ("block_size", block_size, 1, MAX_TOKENS),
        ("first_position", first, 0, MAX_TOKENS),
        ("local", local, 0, MAX_BLOCKS),
    ):
        check_whole("select_blocks", name, value, least, most)
    select = _operator if traced(scores) else _launch
    spans: torch.Tensor = select(scores, count, block_size, first, local, positions)
    return spans


@replayed
def _launch(
    scores: torch.Tensor,
    count: int,
    block_size: int,
    first_position: int,
    local: int,
    positions: torch.Tensor | None,
) -> torch.Tensor:
    check_transforms("select_blocks", scores)
    if scores.dtype != torch.float32:
        raise TypeError(f"select_blocks: scores must be float32; got {scores.dtype}")
    require(
        scores.dim() == 4,
        f"select_blocks: expected scores [B,T,H,n_blocks]; got {tuple(scores.shape)}",
    )
    tokens, blocks = first_position + scores.shape[1], scores.shape[3]
    require(
        blocks * block_size >= tokens,
        f"select_blocks: {blocks} blocks of {block_size} do not hold {tokens} tokens",
    )
    if positions is not None:
        check_lengths("select_blocks", "first_position", positions, scores)
        positions = positions.contiguous()
    return launch_top_n(
        *(scores, count, block_size, first_position, local),
        positions=positions,
    )


@dataclass(frozen=True, slots=True)
class RowTiles:
    """Scores of a group that is looked at together, rows a program, and its warps."""

    members: int
    rows: int
    num_warps: int


def _tiles(n_blocks: int, rows: int, processors: int) -> RowTiles:
    width = next_power_of_2(n_blocks)
    # A warp a row, so that no reduction waits for another; rows beyond a full device follow.
    at_once = 1 if rows < 256 * processors else 4
    return RowTiles(32 if width <= 4096 else 64, at_once, max(1, min(16, width // 2048)))


@on_its_device
def launch_top_n(
    scores: torch.Tensor,
    count: int,
    block_size: int,
    first_position: int,
    local: int = LOCAL_BLOCKS,
    window: int = 0,
    pdl: bool = False,
    spans: bool = True,
    cu_seqlens: torch.Tensor | None = None,
    tiles: RowTiles | None = None,
    positions: torch.Tensor | None = None,
    last_position: int | None = None,
    cu_tokens: torch.Tensor | None = None,
) -> torch.Tensor:
    """``select_blocks``; with a ``window``, for T = 1, int32 [B, 2, H, count, 2]: what is selected
    and, beside it, the last ``window`` keys as a span. ``pdl``: starts beside the launch before.

    Without ``spans`` int32 [B, T, H, count], the blocks themselves, -1 where there are fewer. With
    ``cu_seqlens``, int32 [sequences + 1], for B = 1, blocks are counted from the beginning of a
    query's sequence, and a query in no sequence selects none. With ``positions``, int32 [B], the
    queries of an entry begin at its position plus ``first_position``; what comes before 0 selects
    none, and what comes behind ``last_position`` selects as that does. With ``cu_tokens`` beside
    ``cu_seqlens``, int32 [sequences + 1], queries are the last tokens of their sequences, and spans
    are counted through all of them.
    """
    b, t, h, n_blocks = scores.shape
    check_device("select_blocks", scores)
    require(
        count > local, f"select_blocks: count must be over local={local} for the first; got {count}"
    )
    require(n_blocks <= MAX_BLOCKS, f"select_blocks: at most {MAX_BLOCKS} blocks; got {n_blocks}")
    if last_position is None:
        last_position = min(n_blocks * block_size, MAX_TOKENS) - 1
    sets = 2 if window else t
    shape = (b, sets, h, count, 2) if spans else (b, sets, h, count)
    chosen = torch.empty(shape, dtype=torch.int32, device=scores.device)
    if chosen.numel() == 0:
        return chosen
    rows = b * t * h
    tiles = tiles or _tiles(n_blocks, rows, device_limits(scores.device).processors)
    sequences = 0 if cu_seqlens is None else cu_seqlens.shape[0] - 1
    select_blocks_kernel[(cdiv(rows, tiles.rows),)](
        *(scores.contiguous(), chosen, chosen if cu_seqlens is None else cu_seqlens),
        chosen if cu_tokens is None else cu_tokens,
        chosen if positions is None else positions,
        *(rows, t, h, n_blocks, sequences, first_position, last_position, window),
        COUNT=count,
        SIZE=block_size,
        LOCAL=local,
        PAD_FORCED=next_power_of_2(local + 1),
        GROUPS=cdiv(next_power_of_2(n_blocks), tiles.members),
        MEMBERS=tiles.members,
        ROWS=tiles.rows,
        ALIGNED=n_blocks % 16 == 0,
        PACKED=cu_seqlens is not None,
        STEPS=max(1, sequences.bit_length()),
        BEHIND=cu_tokens is not None,
        POSITIONS=positions is not None,
        SPANS=spans,
        WITH_WINDOW=window > 0,
        PDL=pdl,
        num_warps=tiles.num_warps,
        num_stages=1,
        **launch_options(pdl),
    )
    return chosen


_operator = operator("nsa_kernels::select_blocks", _launch)


@_operator.register_fake
def _(scores: torch.Tensor, count: int, *others: Any) -> torch.Tensor:
    return scores.new_empty((*scores.shape[:3], count, 2), dtype=torch.int32)

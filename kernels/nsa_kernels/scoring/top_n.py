"""Select blocks for each query: forced ones (the first, the last two), then those that score best.

Among equal scores, the lowest index is chosen, here and in ``naive``.
"""

from __future__ import annotations

from dataclasses import dataclass

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
"""How many of the last blocks, up to the query's own, are always selected besides the first."""


def select_blocks(
    scores: torch.Tensor,
    count: int,
    *,
    block_size: int = 64,
    first_position: int | torch.Tensor = 0,
    local: int = LOCAL_BLOCKS,
) -> torch.Tensor:
    """Return the ``count`` blocks that each query selects, as spans up to the query's position.

    The first block and the last ``local`` blocks up to the query are always selected, then those
    with the highest scores. Among equal scores, the lowest index is chosen.

    Args:
        scores: float32 [B, T, H, n_blocks], at most 65,536 blocks. The blocks must reach the last
            query. Negative scores and NaN count as 0.
        first_position: the position of the first query: a number, or int32 [B] on the device. With
            a tensor, queries before 0 select nothing, and queries after the last block select what
            the last token of that block selects.

    Returns:
        int32 [B, T, H, count, 2], half-open spans in the order of choice. Unused slots are (0, 0).

    Raises:
        TypeError: scores or positions have another dtype.
        ValueError: ``count`` is too small for the forced blocks, ``n_blocks`` is too small for the
            queries or too large, or a shape or a device is wrong.
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
        f"select_blocks: {blocks} blocks of {block_size} tokens do not reach {tokens} tokens",
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
    """A program takes ``rows`` rows in turn. A group of a row's scores has ``members`` scores."""

    members: int
    rows: int
    num_warps: int


def _tiles(n_blocks: int, rows: int, processors: int) -> RowTiles:
    width = next_power_of_2(n_blocks)
    # One warp does a row of up to 2,048 blocks, so that reductions need no other warp. If rows fill
    # the device, a program does four rows, one after the other.
    at_once = 1 if rows < 256 * processors else 4
    return RowTiles(32 if width <= 4096 else 64, at_once, max(1, min(16, width // 2048)))


@on_its_device
def launch_top_n(
    scores: torch.Tensor,
    count: int,
    block_size: int,
    first_position: int,
    local: int = LOCAL_BLOCKS,
    pdl: bool = False,
    spans: bool = True,
    cu_seqlens: torch.Tensor | None = None,
    tiles: RowTiles | None = None,
    positions: torch.Tensor | None = None,
    last_position: int | None = None,
    cu_tokens: torch.Tensor | None = None,
) -> torch.Tensor:
    """Make the launch of ``select_blocks``.

    Args:
        pdl: whether the launch may start while the launch before it runs.
        spans: if False, the result is block numbers [B, T, H, count], with -1 in unused slots.
        cu_seqlens: int32 [sequences + 1], with B = 1. Blocks are counted from the beginning of a
            query's sequence, and queries in no sequence select nothing.
        positions: int32 [B], numbers added to ``first_position``. Queries before 0 select
            nothing, and queries after ``last_position`` select what a query there selects.
        cu_tokens: int32 [sequences + 1], only with ``cu_seqlens``. Then the queries are the last
            tokens of their sequences, and spans count from the first sequence's first token.
    """
    b, t, h, n_blocks = scores.shape
    check_device("select_blocks", scores)
    require(count > local, f"select_blocks: count must be over local={local}; got {count}")
    require(n_blocks <= MAX_BLOCKS, f"select_blocks: at most {MAX_BLOCKS} blocks; got {n_blocks}")
    if last_position is None:
        last_position = min(n_blocks * block_size, MAX_TOKENS) - 1
    shape = (b, t, h, count, 2) if spans else (b, t, h, count)
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
        *(rows, t, h, n_blocks, sequences, first_position, last_position),
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
        PDL=pdl,
        num_warps=tiles.num_warps,
        num_stages=1,
        **launch_options(pdl),
    )
    return chosen


_operator = operator(
    "nsa_kernels::select_blocks",
    _launch,
    lambda scores, count, *_: scores.new_empty((*scores.shape[:3], count, 2), dtype=torch.int32),
)

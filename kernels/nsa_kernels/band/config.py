"""The tiles of attention under a band (``geometry.Band``). notes/bands.md has measurements."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..launch.device import device_limits
from ..launch.sizes import cdiv, next_power_of_2
from .geometry import Band


@dataclass(frozen=True, slots=True)
class Tiles:
    """Queries and keys of a tile, and how the program is launched."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


# Forward tiles for more than MANY_KEYS compressed keys, under conditions in ``forward_tiles``.
LONG = Tiles(64, 64, 4, 3)
MANY_KEYS = 1024


def value_columns(d: int, dv: int, itemsize: int) -> int:
    """Return the columns of a tile of values in the forward pass: ``dv`` and masked ones.

    A row of 16-bit values gets at least as many bytes as a row of keys, up to 128, so that both
    have the same layout in shared memory. If the layouts differ and rows are aligned to 2 bytes
    only, ptxas 12.8 takes the address of values from an unwritten register.
    """
    columns = next_power_of_2(dv)
    return max(columns, min(next_power_of_2(d), 64)) if itemsize == 2 else columns


def _shared_bytes(tiles: Tiles, q: torch.Tensor, v: torch.Tensor) -> int:
    """Return a bound on shared memory in bytes: staged keys with values, queries with outputs."""
    d, dv, size = q.shape[3], v.shape[3], q.element_size()
    row = (next_power_of_2(d) + value_columns(d, dv, size)) * size
    return row * (tiles.block_n * tiles.num_stages + tiles.block_m)


def _fit(tiles: Tiles, q: torch.Tensor, dv: int, stage_queries: bool = False) -> Tiles:
    """Return ``tiles`` (in float32, 32 by 32), shrunk to fit in the shared memory of the device.

    A kernel stages tiles of keys beside one tile of queries, or with ``stage_queries`` the reverse.
    """
    m, n, warps, stages = tiles.block_m, tiles.block_n, tiles.num_warps, tiles.num_stages
    if q.element_size() == 4:
        # IEEE fp32 products run on CUDA cores, with whole operands in registers.
        m, n, warps, stages = 32, 32, 4, 1
    row = (next_power_of_2(q.shape[3]) + next_power_of_2(dv)) * q.element_size()
    limit = device_limits(q.device).shared_bytes
    while row * (m * stages + n if stage_queries else n * stages + m) > limit and m * n > 256:
        if stages > 2:
            stages -= 1
        elif m > n:
            m //= 2
        else:
            n //= 2
    return Tiles(m, n, warps, stages)


def forward_tiles(q: torch.Tensor, v: torch.Tensor, band: Band) -> Tiles:
    widest = max(q.shape[3], v.shape[3])
    programs = cdiv(q.shape[1], 64) * q.shape[2] * q.shape[0]
    few = programs <= 2 * device_limits(q.device).processors
    shared = device_limits(q.device).shared_bytes
    if band.window:
        tiles = Tiles(64, 64, 4, 3 if few or widest <= 32 else 2)
    elif widest <= 32:
        tiles = Tiles(64, 64, 4, 2)
    elif widest <= 64 and not few and band.keys is None:
        tiles = Tiles(128, 64, 8, 3)
    elif v.shape[1] > MANY_KEYS and band.keys is None and _shared_bytes(LONG, q, v) <= shared:
        tiles = LONG
    else:
        tiles = Tiles(64, 32, 4, 2)
    return _fit(tiles, q, value_columns(q.shape[3], v.shape[3], q.element_size()))


def dq_tiles(q: torch.Tensor, v: torch.Tensor) -> Tiles:
    stages = 3 if max(q.shape[3], v.shape[3]) <= 64 else 2
    return _fit(Tiles(64, 32, 4, stages), q, v.shape[3])


def dkv_tiles(q: torch.Tensor, v: torch.Tensor, band: Band) -> Tiles:
    if max(q.shape[3], v.shape[3]) > 64:
        tiles = Tiles(32, 64, 4, 3)
    else:
        tiles = Tiles(64, 64, 4, 1) if band.window else Tiles(128, 64, 4, 2)
    return _fit(tiles, q, v.shape[3], stage_queries=True)


def walk_shares(band: Band, programs: int, rows: int, processors: int) -> int:
    """Return how many programs share a key tile, which up to ``rows`` rows (query, head) see.

    With a window, all key tiles are seen by about equally many queries, so two programs for each
    multiprocessor are enough (four for packed sequences, whose lengths differ). Without a window,
    the first key tile is seen by all queries, and the last by hardly any. Small shares of these
    rows make the programs more equal, but shares below 256 rows cost more to add up than they save.
    """
    if band.window:
        wanted, least = (2 if band.keys is None else 4) * processors // programs, 64
    else:
        wanted, least = min(32, 16 * processors // programs), 256
    return max(1, min(wanted, rows // least))

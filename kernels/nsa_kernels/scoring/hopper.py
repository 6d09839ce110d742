"""The launches of block scores on Hopper (``kernels/hopper.py``)."""

from __future__ import annotations

from typing import Any

import torch

from ..band.geometry import Band
from ..launch.descriptors import describe, describe_tokens, in_rows
from ..launch.device import device_limits, runs_gluon
from ..launch.sizes import LOG2_E, cdiv

ROWS = 64
"""Queries of a piece of work, and tokens of a block."""
PAIR = 62
"""Blocks of a piece of work: 31 of each of two tiles of keys."""
PARTS, PART, PANEL = 4, 32, 64
"""Keys are copied as the first, second, third and fourth of blocks, 32 of them and 64 columns at a
time."""
Q_SLOTS = 4
"""Queries of so many heads are in shared memory at once."""
REGISTERS = 240
"""Of a thread that scores. The rest of 64 Ki is for the one warp that copies."""
HEAD_DIM, BLOCK, STRIDE = 128, 32, 16
LEAST_PIECES = 2
"""A multiprocessor, of a batch, since each is a launch: as many as 4096 tokens with 4 key heads
have. Measured was from three times as many on, 8192 tokens; smaller tiles of the other kernel are
spread more evenly."""
LEAST_KEYS = PARTS
"""So that each part has one."""


def fits(q: torch.Tensor, k: torch.Tensor, band: Band, block_size: int) -> bool:
    """Return whether the kernel for Hopper scores the blocks: enough q [B,T,HQ,D], k [B,N,H,D].

    They have 16 bits, D = 128, an even group, the heads of a token in a row, blocks as in the
    paper, and no packed sequences.
    """
    t, hq = q.shape[1:3]
    n, h = k.shape[1:3]
    return (
        runs_gluon(q.device)
        and q.dtype in (torch.float16, torch.bfloat16)
        and q.shape[3] == HEAD_DIM
        and hq // h % 2 == 0
        and (band.block, band.stride, block_size) == (BLOCK, STRIDE, ROWS)
        and band.keys is None
        and n >= LEAST_KEYS
        and in_rows(q)
        and in_rows(k)
        and pieces_of(t, h) >= LEAST_PIECES * device_limits(q.device).processors
    )


def pieces_of(t: int, h: int) -> int:
    """Count pieces of work: the query tiles 62g to 62g + 61 see g + 1 pairs of key tiles each."""
    tiles = cdiv(t, ROWS)
    g = (tiles - 1) // PAIR
    return h * (PAIR * (g * (g + 1) // 2) + (tiles - PAIR * g) * (g + 1))


def _describe_keys(k: torch.Tensor, part: int) -> Any:
    """Describe of one batch [N, H, D] the keys ``part``, ``part`` + 4, ... as rows."""
    n, h, d = k.shape
    rows = cdiv(n - part, PARTS)
    return describe(k[part:], (rows, h * d), PARTS * k.stride(0), (PART, PANEL))


def launch_scores(
    q: torch.Tensor,
    k: torch.Tensor,
    lse: torch.Tensor,
    scores: torch.Tensor,
    sm_scale: float,
) -> None:
    """Fill what is visible of scores [B,T,H,ceil(T / 64)], one launch a batch; lse [B,HQ,T]. Blocks
    that begin behind a query are not written: to have zeros there, clear first."""
    from .kernels.hopper import block_scores_hopper_kernel  # not with every Triton

    t, hq, d = q.shape[1:]
    n, h = k.shape[1:3]
    pieces = pieces_of(t, h)
    for i in range(q.shape[0]):
        block_scores_hopper_kernel[(min(pieces, device_limits(q.device).processors),)](
            *(describe_tokens(q[i], ROWS), *[_describe_keys(k[i], part) for part in range(PARTS)]),
            *(lse[i], scores[i], t, n, h, hq // h, scores.shape[3], pieces, sm_scale * LOG2_E),
            D=d,
            Q_SLOTS=Q_SLOTS,
            REGISTERS=REGISTERS,
            num_warps=4,
        )

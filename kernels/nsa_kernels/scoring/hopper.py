"""The launches of block scores on Hopper (``kernels/hopper.py``)."""

from __future__ import annotations

from typing import Any

import torch

from ..band.geometry import Band
from ..launch.descriptors import describe, describe_tokens, in_rows
from ..launch.device import device_limits, runs_gluon
from ..launch.sizes import LOG2_E, cdiv

ROWS = 64
"""How many queries a piece of work has, and also how many tokens a block has."""
PAIR = 62
"""How many blocks a piece of work has: 31 from each of two tiles of keys."""
PARTS, PART, PANEL = 4, 32, 64
"""A tile of keys has PARTS parts of PART keys. All keys of a part have the same place in their
blocks. TMA copies a part in boxes of PANEL columns."""
Q_SLOTS = 4
"""The number of heads whose queries are in shared memory at once."""
REGISTERS = 240
"""Registers of a thread that computes. They leave 4 Ki of 64 Ki registers to the copying warp."""
HEAD_DIM, BLOCK, STRIDE = 128, 32, 16
LEAST_PIECES = 2
"""The fewest pieces of work of a batch entry for each multiprocessor. With fewer, the Triton kernel
is faster: its tiles are smaller and spread more evenly."""
LEAST_KEYS = PARTS
"""The fewest keys, so that each part has one."""


def fits(q: torch.Tensor, k: torch.Tensor, band: Band, block_size: int) -> bool:
    """Return whether the kernel for Hopper scores blocks for q [B,T,HQ,D] and k [B,N,H,D].

    It needs enough queries and keys, 16 bits, D = 128, adjacent heads, an even number of query
    heads for each key head, and the paper's block sizes. It takes no packed sequences.
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
    """Return the number of pieces. The query tiles 62g to 62g + 61 see g + 1 pairs of key tiles."""
    tiles = cdiv(t, ROWS)
    g = (tiles - 1) // PAIR
    return h * (PAIR * (g * (g + 1) // 2) + (tiles - PAIR * g) * (g + 1))


def _describe_keys(k: torch.Tensor, part: int) -> Any:
    """Describe the keys ``part``, ``part`` + 4, ... of a batch entry [N, H, D] for TMA, as rows."""
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
    """Fill the visible scores [B,T,H,ceil(T / 64)], by one launch for each batch entry; lse is
    [B,HQ,T]. Scores of blocks that begin after a query are not written."""
    from .kernels.hopper import block_scores_hopper_kernel  # fails in some versions of Triton

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

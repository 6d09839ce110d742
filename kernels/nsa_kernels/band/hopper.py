"""The forward launches, on Hopper, of attention under a band (``geometry.Band``)."""

from __future__ import annotations

import torch

from ..launch.descriptors import describe_tokens, in_rows
from ..launch.device import device_limits, runs_gluon
from ..launch.sizes import LOG2_E, cdiv
from .geometry import Band

ROWS, GROUPS = 64, 2
"""Queries of a warp group, and warp groups of a program."""
KEYS, SLOTS = 128, 2
"""Keys of a tile, and tiles in shared memory at once."""
REGISTERS = 240
"""Registers of a thread that computes. They leave 4 Ki of 64 Ki registers to the copying warp."""
HEAD_DIM = 128
LEAST_PIECES, LEAST_KEYS = 3, 64
"""The fewest pieces (128 queries of a head) for each multiprocessor, and the fewest keys. Below
these, the Triton kernel is faster, since its tiles are smaller and spread more evenly."""


def fits(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, band: Band) -> bool:
    """Return whether the kernel for Hopper takes q [B,T,HQ,D], k and v [B,N,H,D].

    It needs enough queries and keys, 16 bits, D = 128, adjacent heads, and no packed sequences.
    """
    return (
        runs_gluon(q.device)
        and q.dtype in (torch.float16, torch.bfloat16)
        and q.shape[3] == v.shape[3] == HEAD_DIM
        and band.keys is None
        and k.shape[1] >= LEAST_KEYS
        and all(in_rows(x) for x in (q, k, v))
        # Each batch entry has its own launch, so only its own pieces count.
        and _pieces(q) >= LEAST_PIECES * device_limits(q.device).processors
    )


def _pieces(q: torch.Tensor) -> int:
    return cdiv(q.shape[1], ROWS * GROUPS) * q.shape[2]


def launch_forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    band: Band,
    sm_scale: float,
) -> None:
    """Fill out [B,T,HQ,D] and lse [B,HQ,T], one launch for each batch entry."""
    from .kernels.hopper import band_hopper_kernel  # fails in some versions of Triton

    t, hq, d = q.shape[1:]
    n, h = k.shape[1:3]
    pieces = _pieces(q)
    for i in range(q.shape[0]):
        band_hopper_kernel[(min(pieces, device_limits(q.device).processors),)](
            *(
                describe_tokens(q[i], ROWS),
                describe_tokens(k[i], KEYS),
                describe_tokens(v[i], KEYS),
                describe_tokens(out[i], ROWS),
            ),
            *(lse[i], t, n, hq, hq // h, band.window, pieces, sm_scale * LOG2_E),
            D=d,
            BLOCK_N=KEYS,
            SLOTS=SLOTS,
            REGISTERS=REGISTERS,
            **band.constants_of_one(),
            num_warps=4,
        )

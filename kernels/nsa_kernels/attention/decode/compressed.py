"""The compression branch of one token, which leaves its logits for the block scores.

Without them the scores would read all compressed keys once more.
"""

from __future__ import annotations

import torch

from ...launch.device import dependent_launch
from ...launch.launcher import launch
from ...launch.shares import Shares, workspace
from ...launch.sizes import cdiv, head_dims, scale_log2, strides
from ...launch.tape import empty
from ...launch.tuned import Tile
from ...selection.rows.config import rows_config
from .kernels.compressed import decode_compressed_kernel

TILE: Tile = (64, 4, 4)
"""Keys, warps, stages: more loads under way than ``rows`` has, for the stores come between."""
LINE = 16
"""Logits of a head begin at multiples of this, so that they are written and read as vectors."""


def launch_compressed(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sm_scale: float
) -> tuple[Shares, torch.Tensor]:
    """Shares of each row, q [N, H, D] over k [N, L, D], v [N, L, Dv], and logits.

    logits: fp32 [N, H, L or up to LINE - 1 more], what is behind L undefined.
    """
    n, h, d = q.shape
    length, dv = v.shape[1:]
    out = empty((n, h, dv), q.dtype, q.device)
    lse = empty((n, h), torch.float32, q.device)
    padded = cdiv(length, LINE) * LINE
    logits = empty((n, h, padded), torch.float32, q.device)
    config = rows_config(n, h, length, d, dv, q.dtype, q.device, TILE, merge=False)
    part = plse = lse
    if config.splits > 1:
        part, plse = workspace(q, n * config.splits, h, dv)
    launch(
        decode_compressed_kernel,
        (n, config.splits, config.head_tiles),
        *(q, k, v, logits, out, lse, part, plse),
        *strides(q, k, v),
        *(h, length, padded, config.chunk, scale_log2(sm_scale, d)),
        **head_dims(d, dv),
        BLOCK_H=config.block_h,
        BLOCK_L=config.block_l,
        SPLIT=config.splits > 1,
        LATE=config.late,
        PDL=dependent_launch(q.device),
        PRECISION="ieee",
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )
    return Shares(out, lse, part, plse, None, config.splits), logits

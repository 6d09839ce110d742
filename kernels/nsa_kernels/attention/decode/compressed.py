"""The compression branch for one token, which stores its logits for the block scores.

Without the logits, the block scores would read all compressed keys again.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ...launch.device import dependent_launch
from ...launch.shares import Shares
from ...launch.sizes import cdiv, head_dims, scale_log2, strides
from ...launch.tuned import Tile
from ...selection.rows.api import selection_rows
from ...selection.rows.config import rows_config
from .kernels.compressed import decode_compressed_kernel

TILE: Tile = (64, 4, 4)
"""Keys, warps, stages. It has more stages than ``selection_rows``, to hide stores of logits."""
LINE = 16
"""The logits of each head begin at a multiple of this, so that kernels load and store vectors."""

LEAST_SHARE = 128
"""The fewest keys of a share, which one program takes: a multiple of the keys of every tile."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """The number of tokens of each batch entry, int32 [B], and the sizes of compressed keys."""

    tokens: torch.Tensor
    block: int
    stride: int


def launch_compressed(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    sm_scale: float | None,
    lengths: Lengths | None = None,
    with_logits: bool = True,
) -> tuple[Shares, torch.Tensor]:
    """Attend with q [N, H, D] to k [N, L, D], v [N, L, Dv]. Return shares of each row, and logits.

    With ``lengths``, the rows of an entry see the keys that end within the entry's tokens, at most
    L keys. If rows are split, the shares then have a ``table``. Logits are fp32 [N, H, L rounded up
    to LINE], undefined past the keys of a row, or any tensor if not ``with_logits``.
    """
    n, h, d = q.shape
    length, dv = v.shape[1:]
    config = rows_config(n, h, length, d, dv, q.dtype, q.device, TILE, merge=False)
    shares = Shares.allocate(q, dv, config.splits, table=lengths is not None)
    logits, padded = shares.lse, cdiv(length, LINE) * LINE
    if with_logits:
        logits = torch.empty((n, h, padded), dtype=torch.float32, device=q.device)
    entries = 1 if lengths is None else lengths.tokens.shape[0]
    decode_compressed_kernel[(n, config.splits, config.head_tiles)](
        *(q, k, v, logits, *shares[:4], shares.table_or_any),
        shares.lse if lengths is None else lengths.tokens,
        *strides(q, k, v),
        *(h, length, padded, config.chunk, n // entries, scale_log2(sm_scale, d)),
        **head_dims(d, dv),
        BLOCK_H=config.block_h,
        BLOCK_L=config.block_l,
        SPLIT=config.splits > 1,
        LATE=config.late,
        LOGITS=with_logits,
        LENGTHS=lengths is not None,
        MIN_SHARE=max(config.block_l, LEAST_SHARE),
        BLOCK=1 if lengths is None else lengths.block,
        STRIDE=1 if lengths is None else lengths.stride,
        PDL=dependent_launch(q.device),
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )
    return shares, logits


def rows_of_lengths(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    sm_scale: float | None,
    lengths: Lengths | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute ``selection_rows`` for rows of different lengths: out [N, H, Dv], lse [N, H]."""
    if lengths is None:
        return selection_rows(q, k, v, sm_scale=sm_scale)
    shares, _ = launch_compressed(q, k, v, sm_scale, lengths, with_logits=False)
    return shares.merged()

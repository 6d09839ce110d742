"""The compression branch for one token, and block scores that do not read its keys again."""

from __future__ import annotations

import functools

import torch

from ...launch.config import Config, fit_tile
from ...launch.device import dependent_launch, device_limits, launch_options
from ...launch.sizes import cdiv, head_dims, next_power_of_2, scale_log2, strides
from ...launch.tuned import Tile
from .kernels.compressed import decode_compressed_kernel
from .kernels.scores import decode_scores_of_sums_kernel

TILE: Tile = (32, 4, 4)
"""Keys, warps, stages. Small enough for two programs on a multiprocessor, and one of the spans."""
MOST_SHARES = 64
"""The most shares of a row of one branch, which one program merges."""
LEAST_SHARE = 64
"""The fewest keys of a share, which one program attends to."""


@functools.lru_cache(maxsize=4096)
def compressed_config(
    n: int,
    h: int,
    length: int,
    span: int,
    d: int,
    dv: int,
    dtype: torch.dtype,
    device: torch.device,
    least: int = 1,
) -> Config:
    """Return the configuration of ``decode_compressed_kernel``, for about two programs on each
    multiprocessor, and at least ``least`` for each row. ``chunk`` is 0 if no tile holds a block,
    which has ``span`` keys."""
    limits = device_limits(device)
    block_h, block_l, warps, stages = fit_tile(h, d, dv, dtype.itemsize, limits, TILE)
    head_tiles = cdiv(h, block_h)
    tile = block_l // next_power_of_2(span) * span
    most = min(cdiv(length, LEAST_SHARE), MOST_SHARES)
    splits = max(1, min(2 * limits.processors // (n * head_tiles), most))
    chunk = cdiv(max(cdiv(length, splits), 1), tile) * tile if tile else 0
    splits = max(cdiv(length, chunk) if tile else 1, least)
    late = n * splits * head_tiles <= 4 * limits.processors
    return Config(block_h, block_l, splits, chunk, head_tiles, warps, stages, late)


def allocate_parts(q: torch.Tensor, dv: int, shares: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Allocate the results of shares of the rows q [N, H, D]: outputs fp32 [N, shares, H, Dv], and
    log2 LSEs fp32 [N, shares, H]. A share without keys is stored as 0, and has no weight."""
    n, h, _ = q.shape
    part = torch.empty((n, shares, h, dv), dtype=torch.float32, device=q.device)
    return part, torch.empty((n, shares, h), dtype=torch.float32, device=q.device)


def launch_compressed(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    sm_scale: float | None,
    tokens: torch.Tensor | None,
    reach: int,
    span: int,
    stride: int,
    config: Config,
    part: torch.Tensor,
    plse: torch.Tensor,
    sums: torch.Tensor | None = None,
) -> None:
    """Attend with q [N, H, D] to k [N, L, D], v [N, L, Dv], and store shares and sums.

    ``tokens`` int32 [B] has the number of tokens of each batch entry, whose rows then see the keys
    that end within them, at most L. ``sums`` are fp32 [N, blocks, sums of a block, H].
    """
    n, h, d = q.shape
    length, dv = v.shape[1:]
    decode_compressed_kernel[(n, config.splits, config.head_tiles)](
        *(q, k, v, plse if sums is None else sums, part, plse),
        plse if tokens is None else tokens,
        *strides(q, k, v),
        *(h, length, 0 if sums is None else sums.shape[1], config.chunk),
        *(n if tokens is None else n // tokens.shape[0], scale_log2(sm_scale, d)),
        **head_dims(d, dv),
        BLOCK_H=config.block_h,
        BLOCK_L=config.block_l,
        LATE=config.late,
        SUMS=0 if sums is None else sums.shape[2],
        LENGTHS=tokens is not None,
        REACH=reach,
        SPAN=span,
        PLACES=next_power_of_2(span),
        STRIDE=stride,
        PDL=dependent_launch(q.device),
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )


def launch_scores_of_sums(
    sums: torch.Tensor,
    plse: torch.Tensor,
    n: int,
    b: int,
    reach: int,
    span: int,
    stride: int,
    tokens: torch.Tensor | None,
) -> torch.Tensor:
    """Return scores [B, H, blocks] from ``sums`` and ``plse``. Only the first ``n`` keys count, and
    with ``tokens`` only keys that end within an entry's tokens."""
    rows, n_blocks, planes, group = sums.shape
    scores = torch.empty((b, rows // b, n_blocks), dtype=torch.float32, device=sums.device)
    wide = min(128, next_power_of_2(n_blocks))
    pdl = dependent_launch(sums.device)
    decode_scores_of_sums_kernel[(rows, cdiv(n_blocks, wide))](
        *(sums, plse, scores, plse if tokens is None else tokens),
        *(n, group, n_blocks, plse.shape[1], rows // b),
        BLOCK_C=next_power_of_2(planes * group),
        BLOCK_J=wide,
        BLOCK_S=next_power_of_2(plse.shape[1]),
        REACH=reach,
        SPAN=span,
        SUMS=planes,
        LENGTHS=tokens is not None,
        STRIDE=stride,
        PDL=pdl,
        num_warps=2,
        num_stages=1,
        **launch_options(pdl),
    )
    return scores

"""Choose the tiles and splits for the spans of a decode step."""

from __future__ import annotations

import functools

import torch

from ...launch.config import Config, fit_tile
from ...launch.device import device_limits
from ...launch.sizes import cdiv


@functools.lru_cache(maxsize=4096)
def decode_spans_config(
    rows: int, h: int, longest: int, d: int, dv: int, dtype: torch.dtype, device: torch.device
) -> Config:
    """Return the configuration of ``ranges_kernel`` in a decode step, whose rows differ in length.

    Rows are split so that there are two programs for each multiprocessor. If there are too many
    rows for that, each row is split in three. If these rows were not split, the short rows of
    windows would end early, and the long rows of selections would run on alone.
    """
    limits = device_limits(device)
    share = 2 * limits.processors // (rows * cdiv(h, 64))
    splits = min(share if share > 1 else 3, max(cdiv(longest, 128), 1), 64)
    block_h, block_l, warps, stages = fit_tile(h, d, dv, dtype.itemsize, limits, (64, 4, 3))
    head_tiles = cdiv(h, block_h)
    late = rows * splits * head_tiles <= 4 * limits.processors
    return Config(block_h, block_l, splits, 0, head_tiles, warps, stages, late)

"""Choose the tiles and work items of ``selection_varlen``."""

from __future__ import annotations

import functools

import torch

from ...launch.config import Config, Given, class_name, class_tile, crowd_of, fit_tile, is_narrow
from ...launch.device import device_limits
from ...launch.sizes import cdiv
from ...launch.tuned import Tile


def _packed_tile(longest: int, many: bool, narrow: bool) -> Tile:
    """Return the tile if a program takes a whole row, of up to ``longest`` keys."""
    if longest <= 256:
        return (32, 2, 3) if many else (64, 4, 3)
    return (128, 4, 3) if narrow and not many else (64, 4, 3)


@functools.lru_cache(maxsize=4096)
def varlen_config(
    n: int,
    h: int,
    total: int,
    d: int,
    dv: int,
    max_seqlen: int | None,
    dtype: torch.dtype,
    device: torch.device,
    given: Given = None,
) -> Config:
    """Return the configuration of ``selection_varlen``, with work items of ``chunk`` keys.

    If rows fill the device, and none is over four times as long as the mean, no row is split. If
    rows fill the device but differ more, items have the mean length of rows, or twice that if the
    longest is unknown. This length is kept within 1/4 to 1 of the keys for each multiprocessor. If
    rows do not fill the device, they are split into about two programs for each multiprocessor.
    """
    limits = device_limits(device)
    programs = n * cdiv(h, 64)
    narrow, crowd = is_narrow(d, dv), crowd_of(programs, limits.processors)
    split = 2 * programs < 3 * limits.processors
    if not split and max_seqlen is not None and n * max_seqlen <= 4 * total:
        longest = max(max_seqlen, 1)
        name = class_name("packed", crowd, narrow, longest)
        rule = _packed_tile(longest, crowd == "many", narrow)
        tile, tuned = class_tile(name, rule, dtype.itemsize, device, given)
        block_h, block_l, warps, stages = fit_tile(h, d, dv, dtype.itemsize, limits, tile)
        if longest > block_l:
            stages = max(stages, 2)
        return Config(block_h, block_l, 1, 0, cdiv(h, block_h), warps, stages, False, tuned, name)
    name = class_name("varlen", "split" if split else crowd, narrow, cdiv(total, max(n, 1)))
    rule = (128, 4, 3) if narrow else (64, 4, 3)
    tile, tuned = class_tile(name, rule, dtype.itemsize, device, given)
    block_h, block_l, warps, stages = fit_tile(h, d, dv, dtype.itemsize, limits, tile)
    head_tiles = cdiv(h, block_h)
    want = cdiv(total * head_tiles, 4 * limits.processors)
    if 2 * n * head_tiles >= 3 * limits.processors:
        items = cdiv(total, n) * (2 if max_seqlen is None else 1)
        want = max(want, min(items, 4 * want))
    else:
        want *= 2
    if max_seqlen is not None:
        want = min(want, max(max_seqlen, 1))
    chunk = max(cdiv(want, block_l), cdiv(128, block_l)) * block_l
    late = n + total // chunk <= 4 * limits.processors
    return Config(block_h, block_l, 0, chunk, head_tiles, warps, stages, late, tuned, name)

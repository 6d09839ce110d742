"""Choose the tiles and splits of ``selection_rows``."""

from __future__ import annotations

import functools

import torch

from ...launch.config import Config, Given, class_name, class_tile, crowd_of, fit_tile, is_narrow
from ...launch.device import device_limits
from ...launch.sizes import cdiv, next_power_of_2
from ...launch.tuned import Tile


def _rows_tile(programs: int, length: int, narrow: bool, processors: int) -> Tile:
    many = programs > 4 * processors
    if length <= 64:
        return max(16, next_power_of_2(length)), 4, 1
    if length <= 128 and (narrow or not many):
        return 128, 4, 1
    if programs <= processors:
        return 128, 4, 3
    if not many:
        two = programs <= 2 * processors
        if narrow:
            return (128, 4, 3) if two and length > 256 else (64, 4, 3)
        return (64, 2, 3) if two else (64, 4, 2)
    if narrow:
        return (32, 1, 3) if length <= 512 else (128, 2, 2)
    if length <= 256:
        return 32, 1, 2
    return (64, 4, 2) if length <= 512 else (128, 4, 2)


@functools.lru_cache(maxsize=4096)
def rows_config(
    n: int,
    h: int,
    length: int,
    d: int,
    dv: int,
    dtype: torch.dtype,
    device: torch.device,
    given: Given = None,
) -> Config:
    """Return the configuration of ``rows_group_kernel`` for a shape on a device.

    Rows that fill the device are not split. Fewer rows are split into about one program for each
    multiprocessor, each with 128 keys or more. A row is not split into two shares of less than 512
    keys, since a merge is a launch that costs more than such a split saves.
    """
    limits = device_limits(device)
    programs = max(n * cdiv(h, 64), 1)
    splits = 1
    if 2 * programs < 3 * limits.processors:
        splits = min(max(limits.processors // programs, 1), max(length // 128, 1))
        share = cdiv(cdiv(max(length, 1), splits), 128) * 128
        if share < 512 and cdiv(length, share) == 2:
            splits = 1
    narrow = is_narrow(d, dv)
    if splits > 1:
        crowd = "split"
        rule = (128, 8, 1) if length <= 128 * splits else (128, 4, 3)
    else:
        is_alone = programs <= limits.processors
        crowd = "one" if is_alone else crowd_of(programs, limits.processors)
        rule = _rows_tile(programs, length, narrow, limits.processors)
    name = class_name("rows", crowd, narrow, cdiv(length, splits))
    tile, tuned = class_tile(name, rule, dtype.itemsize, device, given)
    block_h, block_l, warps, stages = fit_tile(h, d, dv, dtype.itemsize, limits, tile)
    chunk = cdiv(max(cdiv(length, splits), 1), block_l) * block_l
    splits = max(cdiv(length, chunk), 1)
    if chunk > block_l:
        stages = max(stages, 2)
    head_tiles = cdiv(h, block_h)
    # See ``jit.tiles.late``. If there are few programs, the wait for the first keys matters. With
    # large, wide tiles, q is rarely staged again.
    late = n * splits * head_tiles <= 4 * limits.processors
    late = late or (block_l >= 128 and not narrow)
    return Config(block_h, block_l, splits, chunk, head_tiles, warps, stages, late, tuned, name)

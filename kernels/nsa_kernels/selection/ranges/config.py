"""Choose the tiles and splits of ``selection_ranges``."""

from __future__ import annotations

import functools

import torch

from ...launch.config import Config, Given, class_name, class_tile, crowd_of, fit_tile, is_narrow
from ...launch.device import device_limits
from ...launch.sizes import cdiv

LEAST_SHARE = 64
"""The fewest keys of a share. To merge smaller shares costs more than it saves."""


@functools.lru_cache(maxsize=4096)
def ranges_config(
    rows: int,
    h: int,
    n_spans: int,
    s_kv: int,
    d: int,
    dv: int,
    selected_len: int | None,
    dtype: torch.dtype,
    device: torch.device,
    given: Given = None,
) -> Config:
    """Return the configuration of ``selection_ranges``, whose splits share a row's keys evenly.

    If rows would occupy at most a quarter of the multiprocessors, they are split into one program
    for each multiprocessor, and more rows into two for each. Rows that occupy three quarters or
    more are not split, since so many multiprocessors read as fast as all. A row has at most 64
    splits, and at most one for each LEAST_SHARE keys that it may select. Only the device knows how
    many keys a row selects. If a row selects few, some of its programs end at once.
    """
    limits = device_limits(device)
    programs = max(rows * cdiv(h, 64), 1)
    bound = s_kv if selected_len is None else min(selected_len, s_kv)
    few = 4 * programs <= limits.processors
    splits = 1
    if 4 * programs < 3 * limits.processors:
        wanted = (1 if few else 2) * limits.processors // programs
        splits = max(1, min(wanted, cdiv(bound, LEAST_SHARE), 64))
    narrow, crowd = is_narrow(d, dv), crowd_of(programs, limits.processors)
    if splits > 1:
        crowd = "few" if few else "split"
        rule = (32, 4 if few or h <= 8 else 2, 4)
    elif programs <= limits.processors:
        crowd, rule = "one", (64, 4, 4)
    elif crowd == "many":
        rule = (32, 1, 3) if narrow else (64, 4, 2)
    else:
        rule = (64, 4, 3)
    # The number of keys of a row is unknown, so all lengths are one class.
    name = class_name("ranges", crowd, narrow, 0)
    tile, tuned = class_tile(name, rule, dtype.itemsize, device, given)
    block_h, block_l, warps, stages = fit_tile(h, d, dv, dtype.itemsize, limits, tile)
    head_tiles = cdiv(h, block_h)
    late = rows * splits * head_tiles <= 4 * limits.processors
    return Config(block_h, block_l, splits, 0, head_tiles, warps, stages, late, tuned, name)

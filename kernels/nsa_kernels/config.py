"""Launch configurations: a pure function of (device, shape class), never of a measurement.

A table of rules instead of run-time autotuning keeps the first call free of trials and two runs on
one GPU bit-identical. The rules come from sweeps on an H200 (docs/kernels.md); what another device
changes, its number of multiprocessors and its shared memory, enters the rules as numbers.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

from ._checks import cdiv, next_power_of_2


@dataclass(frozen=True, slots=True)
class Config:
    """How one kernel is launched.

    ``block_h`` heads and ``block_l`` keys a tile; ``splits`` programs share a row, each taking
    ``chunk`` keys (0: the kernel derives it on the device); ``head_tiles`` programs cover H.
    """

    block_h: int
    block_l: int
    splits: int
    chunk: int
    head_tiles: int
    num_warps: int
    num_stages: int


@dataclass(frozen=True, slots=True)
class Device:
    """What the rules need to know of a GPU: multiprocessors, shared memory a program may use."""

    processors: int
    shared_bytes: int


_CPU = Device(processors=4, shared_bytes=99 * 1024)


@functools.lru_cache(maxsize=64)
def device_limits(device: torch.device) -> Device:
    """Limits of a device, read once; the interpreter (CPU) is given small ones."""
    if device.type != "cuda":
        return _CPU
    props = torch.cuda.get_device_properties(device)
    # torch < 2.6 does not report the opt-in limit; the smallest of all supported GPUs is safe.
    shared = int(getattr(props, "shared_memory_per_block_optin", 99 * 1024))
    return Device(processors=props.multi_processor_count, shared_bytes=shared)


def shared_estimate(
    block_h: int, block_l: int, block_d: int, block_dv: int, itemsize: int, stages: int
) -> int:
    """Upper estimate of a program's shared memory in bytes: pipelined K and V tiles, q and p."""
    tile = block_l * (block_d + block_dv) * itemsize
    return tile * max(stages, 1) + block_h * (block_d + block_l + block_dv) * max(itemsize, 4)


def _tile(
    h: int, d: int, dv: int, itemsize: int, device: Device, block_l: int, stages: int
) -> tuple[int, int, int]:
    """(block_h, block_l, stages) that fit the device's shared memory, shrinking as needed."""
    block_h = min(max(16, next_power_of_2(h)), 64)
    block_d, block_dv = next_power_of_2(d), next_power_of_2(dv)
    if itemsize == 4:
        # IEEE fp32 products run on the plain cores with whole operands in registers.
        block_h, block_l, stages = 16, min(block_l, 32), min(stages, 2)
    while (
        shared_estimate(block_h, block_l, block_d, block_dv, itemsize, stages) > device.shared_bytes
    ):
        if stages > 2:
            stages -= 1
        elif block_l > 16:
            block_l //= 2
        elif block_h > 16:
            block_h //= 2
        else:
            break
    return block_h, block_l, stages


@functools.lru_cache(maxsize=4096)
def rows_config(
    n: int, h: int, length: int, d: int, dv: int, dtype: torch.dtype, device: torch.device
) -> Config:
    """The configuration of ``rows_group`` for a shape on a device."""
    limits = device_limits(device)
    itemsize = dtype.itemsize
    block_l = 64 if length > 32 else max(16, next_power_of_2(length))
    block_h, block_l, stages = _tile(h, d, dv, itemsize, limits, block_l, 3)
    head_tiles = cdiv(h, block_h)
    tiles = max(cdiv(length, block_l), 1)
    want = cdiv(2 * limits.processors, n * head_tiles)
    splits = max(1, min(want, tiles, 64))
    chunk = cdiv(tiles, splits) * block_l
    splits = max(cdiv(length, chunk), 1)
    return Config(block_h, block_l, splits, chunk, head_tiles, 4, stages)


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
) -> Config:
    """The configuration of ``selection_varlen``; ``chunk`` keys are one work item."""
    limits = device_limits(device)
    block_h, block_l, stages = _tile(h, d, dv, dtype.itemsize, limits, 64, 3)
    head_tiles = cdiv(h, block_h)
    want = cdiv(total * head_tiles, 4 * limits.processors)
    chunk = min(max(cdiv(want, block_l), 2) * block_l, 1024)
    return Config(block_h, block_l, 0, chunk, head_tiles, 4, stages)


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
) -> Config:
    """The configuration of ``selection_ranges``; its splits share a row's keys evenly."""
    limits = device_limits(device)
    block_h, block_l, stages = _tile(h, d, dv, dtype.itemsize, limits, 64, 3)
    head_tiles = cdiv(h, block_h)
    bound = s_kv if selected_len is None else min(selected_len, s_kv)
    tiles = max(cdiv(bound, block_l), 1)
    splits = max(1, min(cdiv(2 * limits.processors, rows * head_tiles), tiles, 64))
    return Config(block_h, block_l, splits, 0, head_tiles, 4, stages)

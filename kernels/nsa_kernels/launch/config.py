"""Choose launch configurations by the device and the class of the shape, without a measurement.

Rules replace autotuning at run time. So the first call needs no trials, and two runs on one GPU
agree bit for bit. The rules come from sweeps on an H200 (notes/rows.md). They adapt to other
devices by the number of multiprocessors and the bytes of shared memory. If ``python -m
nsa_kernels.tune`` has found a better tile for a class of shapes, that tile is used instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from .checks import require
from .device import Device
from .sizes import cdiv, next_power_of_2
from .tuned import Tile, tuned_tiles


@dataclass(frozen=True, slots=True)
class Config:
    """How one kernel is launched.

    A tile has ``block_h`` heads and ``block_l`` keys. ``splits`` programs share a row, and each
    takes ``chunk`` keys (0: the kernel computes the number on the device). ``head_tiles`` programs
    cover all heads. ``selection_varlen`` sets ``splits`` to 1 if no row is split, and to 0 if rows
    are split into work items of ``chunk`` keys. If ``late``, the first keys are loaded before q has
    arrived (``jit.tiles.late``). If ``tuned``, ``nsa_kernels.tune`` has found the tile.
    """

    block_h: int
    block_l: int
    splits: int
    chunk: int
    head_tiles: int
    num_warps: int
    num_stages: int
    late: bool = False
    tuned: bool = False
    shape_class: str = ""


def check_heads(op: str, config: Config, h: int) -> None:
    """Raise ValueError if a given config does not cover all ``h`` heads."""
    require(
        config.head_tiles * config.block_h >= h,
        f"{op}: config covers {config.head_tiles * config.block_h} heads, but q has {h}; "
        "get it from chosen_config with these tensors, or leave it out",
    )


def check_chunks(op: str, splits: int, chunk: int, tile: int, length: int) -> None:
    """Raise ValueError if the given shares of a row leave out or repeat some of its keys."""
    require(
        chunk >= tile > 0 and chunk % tile == 0 and splits == max(cdiv(length, chunk), 1),
        f"{op}: {splits} shares of {chunk} keys, in tiles of {tile}, do not cover rows of {length} "
        "keys; make config or plan from these tensors, or leave it out",
    )


def shared_estimate(
    block_h: int, block_l: int, block_d: int, block_dv: int, itemsize: int, stages: int
) -> int:
    """Return an upper bound of a program's shared memory in bytes: staged K and V, q, p, output."""
    tile = block_l * (block_d + block_dv) * itemsize
    return tile * max(stages, 1) + block_h * (block_d + block_l + block_dv) * max(itemsize, 4)


def fit_tile(
    h: int, d: int, dv: int, itemsize: int, device: Device, tile: Tile
) -> tuple[int, int, int, int]:
    """Return (block_h, block_l, num_warps, num_stages) of ``tile``, shrunk to fit the device."""
    block_l, warps, stages = tile
    block_h = min(max(16, next_power_of_2(h)), 64)
    block_d, block_dv = next_power_of_2(d), next_power_of_2(dv)
    widest = max(block_d, block_dv)
    if widest > 128:
        block_l, warps = max(block_l // 2, 16), max(warps, 4)
    if block_h > 16:
        warps = max(warps, 4)
    if itemsize == 4:
        # IEEE fp32 products run on CUDA cores, with whole operands in registers.
        block_h, block_l, warps, stages = 16, min(block_l, 32), 4, min(stages, 2)
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
    return block_h, block_l, warps, stages


RULE = "rule"
"""This value stands for the tile of the rule, even if there is a tuned tile."""
Given = Tile | Literal["rule"] | None
"""A tile, or RULE. None: the tuned tile if there is one, else the tile of the rule."""


def crowd_of(programs: int, processors: int) -> str:
    """Return "some" for up to four programs per multiprocessor, else "many"."""
    return "some" if programs <= 4 * processors else "many"


def class_name(op: str, crowd: str, narrow: bool, length: int) -> str:
    """Return the name of a class of shapes that share a tile. ``length``: the keys of a program."""
    reach = min(max(next_power_of_2(length), 64), 2048)
    return f"{op}-{crowd}-{'narrow' if narrow else 'wide'}-{reach}"


def class_tile(
    name: str, rule: Tile, itemsize: int, device: torch.device, given: Given
) -> tuple[Tile, bool]:
    """Return ``given`` if it is a tile, else a tuned tile or ``rule``, and whether that is tuned.

    Only 16-bit inputs have tuned tiles, and RULE as ``given`` skips them.
    """
    if isinstance(given, tuple):
        return given, False
    tuned_tile = tuned_tiles(device).get(name) if given is None and itemsize == 2 else None
    return (rule, False) if tuned_tile is None else (tuned_tile, True)


def is_narrow(d: int, dv: int) -> bool:
    return max(d, dv) <= 64

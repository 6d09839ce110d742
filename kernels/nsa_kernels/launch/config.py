"""Launch configurations: a pure function of (device, shape class), never of a measurement.

A table of rules instead of run-time autotuning keeps the first call free of trials and two runs on
one GPU bit-identical. Sweeps on an H200 gave the rules (notes/rows.md), and other devices change
their numbers of multiprocessors and shared memory. Tiles that ``python -m nsa_kernels.tune`` wrote
down have precedence over the rules.
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

    ``block_h`` heads and ``block_l`` keys a tile; ``splits`` programs share a row, each taking
    ``chunk`` keys (0: the kernel derives it on the device); ``head_tiles`` programs cover H. In
    ``selection_varlen`` ``splits`` is 1 where no row is shared, else 0, by work items of ``chunk``.
    ``late`` asks for the first keys before q has arrived (``tiles.late``). ``tuned``: the tile is
    from the file that ``nsa_kernels.tune`` wrote, where it stands under ``shape_class``.
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
    """Raises ValueError for a given config that leaves out some of ``h`` heads."""
    require(
        config.head_tiles * config.block_h >= h,
        f"{op}: the config is one for up to {config.head_tiles * config.block_h} heads, "
        f"q has {h}; take chosen_config of these tensors, or leave it out",
    )


def check_chunks(op: str, splits: int, chunk: int, tile: int, length: int) -> None:
    """Raises ValueError for given shares of a row that leave out, or repeat, some of its keys."""
    require(
        chunk >= tile > 0 and chunk % tile == 0 and splits == max(cdiv(length, chunk), 1),
        f"{op}: {splits} shares of {chunk} keys, in tiles of {tile}, are not for rows of {length} "
        "keys; choose config or plan from these tensors, or leave it out",
    )


def shared_estimate(
    block_h: int, block_l: int, block_d: int, block_dv: int, itemsize: int, stages: int
) -> int:
    """Upper estimate of a program's shared memory in bytes: pipelined K and V tiles, q and p."""
    tile = block_l * (block_d + block_dv) * itemsize
    return tile * max(stages, 1) + block_h * (block_d + block_l + block_dv) * max(itemsize, 4)


def fit_tile(
    h: int, d: int, dv: int, itemsize: int, device: Device, tile: Tile
) -> tuple[int, int, int, int]:
    """(block_h, block_l, num_warps, num_stages): ``tile`` shrunk until it fits the device."""
    block_l, warps, stages = tile
    block_h = min(max(16, next_power_of_2(h)), 64)
    block_d, block_dv = next_power_of_2(d), next_power_of_2(dv)
    widest = max(block_d, block_dv)
    if widest > 128:
        block_l, warps = max(block_l // 2, 16), max(warps, 4)
    if block_h > 16:
        warps = max(warps, 4)
    if itemsize == 4:
        # IEEE fp32 products run on the plain cores with whole operands in registers.
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
"""Asks for the rule's tile, whatever was tuned."""
Given = Tile | Literal["rule"] | None
"""A tile, or RULE; None: the tuned one, else the rule's."""


def crowd_of(programs: int, processors: int) -> str:
    """How many programs a multiprocessor has: some (up to four), or many."""
    return "some" if programs <= 4 * processors else "many"


def class_name(op: str, crowd: str, narrow: bool, length: int) -> str:
    """The name of a shape class: what a tile is chosen by. ``length``: keys of a program, about."""
    reach = min(max(next_power_of_2(length), 64), 2048)
    return f"{op}-{crowd}-{'narrow' if narrow else 'wide'}-{reach}"


def class_tile(
    name: str, rule: Tile, itemsize: int, device: torch.device, given: Given
) -> tuple[Tile, bool]:
    """The tile given, else the tuned one of the class, else the rule's; whether it was tuned."""
    if isinstance(given, tuple):
        return given, False
    tuned_tile = tuned_tiles(device).get(name) if given is None and itemsize == 2 else None
    return (rule, False) if tuned_tile is None else (tuned_tile, True)


def is_narrow(d: int, dv: int) -> bool:
    return max(d, dv) <= 64

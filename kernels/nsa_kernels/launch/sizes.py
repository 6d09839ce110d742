"""Arithmetic for launches: powers of two, batches, strides."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from .checks import require

LOG2_E = 1.4426950408889634
GRID = 65_535
"""The most programs along the second axis of a CUDA grid, and along its third axis."""


def scale_log2(sm_scale: float | None, head_dim: int) -> float:
    """Return the factor from q.k to log2 logits. The default scale is 1/sqrt(D)."""
    return (1.0 / math.sqrt(head_dim) if sm_scale is None else float(sm_scale)) * LOG2_E


def next_power_of_2(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def cdiv(a: int, b: int) -> int:
    return -(-a // b)


def batches(entries: int, programs: int) -> Iterator[slice]:
    """Yield slices of a batch that need at most GRID programs each, with ``programs`` per entry."""
    require(programs <= GRID, f"at most {GRID} key heads per batch entry; got {programs}")
    at_once = max(1, GRID // max(1, programs))
    for first in range(0, entries, at_once):
        yield slice(first, min(first + at_once, entries))


def head_dims(d: int, dv: int) -> dict[str, int]:
    """Return a kernel's constants for the head dims of q, k and of v, plain and padded."""
    return {"D": d, "DV": dv, "BLOCK_D": next_power_of_2(d), "BLOCK_DV": next_power_of_2(dv)}


def strides(*tensors: torch.Tensor) -> tuple[int, ...]:
    """Return the strides of all ``tensors`` without the last of each, which is always 1
    (``launch.device.normalised``)."""
    flat: tuple[int, ...] = ()
    for x in tensors:
        flat += x.stride()[:-1]
    return flat

"""Zeros, by a launch like all others."""

from __future__ import annotations

import torch

from ..jit.clear import clear_kernel
from .sizes import cdiv

ELEMENTS = 4096
"""Of a program."""


def clear(x: torch.Tensor) -> None:
    """Zeros into contiguous ``x``."""
    if x.numel() > 0:
        clear_kernel[(cdiv(x.numel(), ELEMENTS),)](x, x.numel(), BLOCK=ELEMENTS, num_warps=4)

"""Fill memory with zeros by a kernel, since ``replay`` cannot repeat what torch launches."""

from __future__ import annotations

import torch

from ..jit.clear import clear_kernel
from .sizes import cdiv

ELEMENTS = 4096
"""Elements that one program fills."""


def clear(x: torch.Tensor) -> None:
    if x.numel() > 0:
        clear_kernel[(cdiv(x.numel(), ELEMENTS),)](x, x.numel(), BLOCK=ELEMENTS, num_warps=4)

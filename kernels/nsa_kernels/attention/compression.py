"""Compress blocks of keys and values (arXiv 2502.11089, section 3.3.1)."""

from __future__ import annotations

import torch
from torch import nn

from ..jit.compat import CPU_ALLOWED
from ..launch.checks import DTYPES
from .means import means_of_blocks


class MeanCompression(nn.Module):
    """Compress blocks of ``block`` tokens, which begin ``stride`` tokens apart, to their means."""

    def __init__(self, block: int, stride: int) -> None:
        super().__init__()
        self.block, self.stride = block, stride

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, T, H, D] -> [B, (T - block) // stride + 1, H, D]; no key if T < block."""
        if x.shape[1] < self.block:
            return x[:, :0]
        if x.dtype not in DTYPES or not (x.is_cuda or CPU_ALLOWED):
            return x.unfold(1, self.block, self.stride).mean(-1)
        # The kernel compresses keys and values. Here it gets values without heads.
        return means_of_blocks(x, x[:, :, :0], self.block, self.stride)[0]


class MLPCompression(nn.Module):
    """Compress each block by a small MLP (equation 7), after adding a learned embedding of the
    position within the block."""

    def __init__(self, block: int, stride: int, dim: int) -> None:
        super().__init__()
        self.block, self.stride = block, stride
        self.position = nn.Parameter(torch.randn(block, dim) * dim**-0.5)
        self.mlp = nn.Sequential(
            nn.Linear(block * dim, 2 * dim), nn.SiLU(), nn.Linear(2 * dim, dim)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, T, H, D] -> [B, (T - block) // stride + 1, H, D]; no key if T < block."""
        if x.shape[1] < self.block:
            return x[:, :0]
        blocks = x.unfold(1, self.block, self.stride).transpose(-1, -2) + self.position
        compressed: torch.Tensor = self.mlp(blocks.flatten(-2))
        return compressed

"""Rotary position embedding (arXiv 2104.09864), in plain torch, differentiable.

Dimensions i and i + D / 2 of a head are rotated as a pair, by position * base ** (-2 i / D), as in
models of Hugging Face Transformers.
"""

from __future__ import annotations

from math import isfinite

import torch

from ..launch.checks import require


def check_rotary(op: str, base: object, head_dim: int) -> None:
    """Raise ValueError unless ``base`` is a number over 1 and heads have an even dim."""
    require(
        isinstance(base, int | float) and isfinite(base) and base > 1,
        f"{op}: rotary must be a base over 1, such as 10000.0, or None; got {base!r}",
    )
    require(head_dim % 2 == 0, f"{op}: rotary needs an even head_dim; got {head_dim}")


def positions_of(
    x: torch.Tensor, first: int = 0, cu_seqlens: torch.Tensor | None = None
) -> torch.Tensor:
    """Return positions int64 [T] for x [B, T, ...], from ``first``. With ``cu_seqlens``, int32
    [sequences + 1], they are counted from the beginning of each packed sequence, on the device."""
    position = torch.arange(first, first + x.shape[1], device=x.device)
    if cu_seqlens is None:
        return position
    # If several sequences begin at one position, all but the last are empty. So take the last.
    sequence = torch.searchsorted(cu_seqlens, position, right=True, out_int32=True) - 1
    return position - cu_seqlens[sequence.clamp(min=0)]


def rotate(x: torch.Tensor, positions: torch.Tensor, base: float) -> torch.Tensor:
    """Return x [B, T, H, D] rotated to ``positions`` [T], in x's dtype.

    D is even (``check_rotary``). The result is computed in float32, or in float64 if x is float64.
    """
    half = x.shape[-1] // 2
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    turns = torch.arange(half, device=x.device, dtype=dtype) / -half
    angle = positions[:, None, None] * base**turns
    cos, sin = angle.cos(), angle.sin()
    first, second = x.to(dtype).split(half, -1)
    turned = torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
    return turned.to(x.dtype)

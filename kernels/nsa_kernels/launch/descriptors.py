"""Make the descriptors with which kernels in Gluon copy boxes (rows, columns) by TMA."""

from __future__ import annotations

from typing import Any

import torch


def in_rows(x: torch.Tensor) -> bool:
    """Return whether TMA can copy each token of x [B, T, H, D] as one row: the heads of a token are
    adjacent, and rows are aligned."""
    heads_in_a_row = x.stride(3) == 1 and (x.shape[2] == 1 or x.stride(2) == x.shape[3])
    steps = (x.stride(0) if x.shape[0] > 1 else 0, x.stride(1))
    aligned = x.data_ptr() % 16 == 0 and all(step * x.element_size() % 16 == 0 for step in steps)
    return heads_in_a_row and aligned and x.stride(1) > 0


def heads_in_rows(x: torch.Tensor) -> bool:
    """Return whether TMA can copy each head of x [N, H, D] as a row: the stride of heads divides
    the stride of tokens, and rows are aligned."""
    step_t, step_h, step_d = x.stride()
    aligned = x.data_ptr() % 16 == 0 and step_h * x.element_size() % 16 == 0
    return step_d == 1 and step_h >= x.shape[2] and step_t % step_h == 0 and aligned


def describe(x: torch.Tensor, shape: tuple[int, int], row: int, box: tuple[int, int]) -> Any:
    """Describe x as ``shape`` (rows, columns), with ``row`` elements from one row to the next, for
    copies of ``box`` (rows, columns). A copy reads 0 past the last row."""
    from triton.experimental.gluon.language import NVMMASharedLayout
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    # The layout that tensor cores read from shared memory: swizzled rows of 128 bytes.
    layout = NVMMASharedLayout(128, 8 * x.element_size(), 2)
    return TensorDescriptor(x, list(shape), [row, 1], list(box), layout)


def describe_tokens(x: torch.Tensor, rows: int) -> Any:
    """Describe x [T, H, D] as T rows. A box is one head of ``rows`` tokens."""
    t, h, d = x.shape
    return describe(x, (t, h * d), x.stride(0), (rows, d))


def describe_heads(x: torch.Tensor, heads: int) -> Any:
    """Describe x [N, H, D] as rows of D, one for each head. A box has ``heads`` rows, 64 columns.

    A token has ``x.stride(0) // x.stride(1)`` rows. The first H of them are its heads.
    """
    n, h, d = x.shape
    rows = (n - 1) * (x.stride(0) // x.stride(1)) + h
    return describe(x, (rows, d), x.stride(1), (heads, 64))

"""Descriptors of tensors, from which a kernel in Gluon copies boxes of rows by TMA."""

from __future__ import annotations

from typing import Any

import torch


def in_rows(x: torch.Tensor) -> bool:
    """Return whether TMA can copy a token of x [B, T, H, D] as a row: its heads are adjacent, and
    its address is aligned."""
    heads_in_a_row = x.stride(3) == 1 and (x.shape[2] == 1 or x.stride(2) == x.shape[3])
    steps = (x.stride(0) if x.shape[0] > 1 else 0, x.stride(1))
    aligned = x.data_ptr() % 16 == 0 and all(step * x.element_size() % 16 == 0 for step in steps)
    return heads_in_a_row and aligned and x.stride(1) > 0


def heads_in_rows(x: torch.Tensor) -> bool:
    """Return whether TMA can copy each head of x [N, H, D] as a row: tokens are a whole number of
    rows apart, and rows are aligned."""
    step_t, step_h, step_d = x.stride()
    aligned = x.data_ptr() % 16 == 0 and step_h * x.element_size() % 16 == 0
    return step_d == 1 and step_h >= x.shape[2] and step_t % step_h == 0 and aligned


def describe(x: torch.Tensor, shape: tuple[int, int], row: int, box: tuple[int, int]) -> Any:
    """Return the descriptor of rows that begin ``row`` elements apart, copied by boxes of rows and
    columns. A copy reads 0 after the last row."""
    from triton.experimental.gluon.language import NVMMASharedLayout
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    # The layout that tensor cores read from shared memory: swizzled rows of 128 bytes.
    layout = NVMMASharedLayout(128, 8 * x.element_size(), 2)
    return TensorDescriptor(x, list(shape), [row, 1], list(box), layout)


def describe_tokens(x: torch.Tensor, rows: int) -> Any:
    """Describe one batch [T, H, D] as T rows, in boxes of ``rows`` and the columns of a head."""
    t, h, d = x.shape
    return describe(x, (t, h * d), x.stride(0), (rows, d))


def describe_heads(x: torch.Tensor, heads: int) -> Any:
    """Describe x [N, H, D] as rows of D, each a head, in boxes of ``heads`` and 64 columns.

    A token has ``x.stride(0) // x.stride(1)`` rows, of which H are its heads.
    """
    n, h, d = x.shape
    rows = (n - 1) * (x.stride(0) // x.stride(1)) + h
    return describe(x, (rows, d), x.stride(1), (heads, 64))

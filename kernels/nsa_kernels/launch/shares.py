"""Merge the shares of each row, in the second launch of a split call.

A call is split if several programs each compute a share of a row, and store it in a slot of a
workspace. Shares are merged in the order of their slots, so the result does not depend on timing. A
separate launch needs no atomics and no zeroed counters (docs/explanation/kernels/shared.md).
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from ..jit.merge import merge_kernel, sum_kernel
from .device import dependent_launch, launch_options
from .sizes import cdiv, next_power_of_2

MANY_PROGRAMS = 1024
"""A merge with more rows times heads than this takes several rows in a program."""


class Shares(NamedTuple):
    """Results of the first launch of a split call, to be merged if ``splits`` is over 1.

    Rows that one program computed alone are already in ``out`` and ``lse``. ``part`` and ``plse``
    are a ``workspace``. ``merge`` explains ``table``.
    """

    out: torch.Tensor
    lse: torch.Tensor
    part: torch.Tensor
    plse: torch.Tensor
    table: torch.Tensor | None
    splits: int


def workspace(
    like: torch.Tensor, slots: int, heads: int, dv: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Allocate flat fp32 memory for outputs [slots, heads, dv] and log2 LSEs [slots, heads]."""
    buffer = torch.empty((slots * heads * (dv + 1),), dtype=torch.float32, device=like.device)
    edge = slots * heads * dv
    return buffer[:edge], buffer[edge:]


def merge(
    out: torch.Tensor,
    lse: torch.Tensor,
    part: torch.Tensor,
    plse: torch.Tensor,
    table: torch.Tensor | None,
    n_slots: int,
    slots: int = 0,
    paged: bool = False,
) -> None:
    """Write ``out`` [..., H, Dv] and ``lse`` [..., H] of the rows that were split.

    Args:
        table: int32 [rows, 2], written by the first launch: the first slot and the number of shares
            of each row. None: each row has ``n_slots`` shares, in the order of rows.
        n_slots: number of shares of each row; with a table, the largest number that is expected.
        slots: number of slots of the workspace; needed with a table.
        paged: whether all keys of a share may be absent (``jit.pages``).
    """
    h, dv = out.shape[-2:]
    block_dv = next_power_of_2(dv)
    # A tile of shares takes at most 128 registers of each thread of two warps.
    block_s = max(2, min(next_power_of_2(n_slots), 8192 // block_dv))
    n_rows = lse.numel() // h
    pdl = dependent_launch(out.device)
    # In a large call with a table, most rows are not split, so a program takes several.
    rows = 1 if table is None else max(1, min(16, next_power_of_2(n_rows * h // MANY_PROGRAMS)))
    merge_kernel[(cdiv(n_rows, rows), h)](
        *(out, lse, part, plse, lse if table is None else table),
        *(h, n_rows, n_slots, slots),
        DV=dv,
        BLOCK_DV=block_dv,
        BLOCK_S=block_s,
        ROWS=rows,
        TABLE=table is not None,
        PAGED=paged,
        PDL=pdl,
        num_warps=2 if block_s * block_dv > 2048 else 1,
        num_stages=1,
        **launch_options(pdl),
    )


def room_for_shares(
    dk: torch.Tensor, dv: torch.Tensor, shares: int
) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Return memory for the shares of dk, memory for the shares of dv, and the elements from one
    share to the next. A single share is dk or dv itself. Several are float32, for ``add_shares``.
    """
    stride = dk.numel() + dv.numel()
    if shares == 1:
        return dk, dv, stride
    parts = torch.empty((shares, stride), dtype=torch.float32, device=dk.device)
    return parts, parts[0, dk.numel() :], stride


def add_shares(parts: torch.Tensor, dk: torch.Tensor, dv: torch.Tensor) -> None:
    """Write dk and dv, contiguous, as sums of parts [shares, dk.numel() + dv.numel()] float32."""
    shares, stride = parts.shape
    sum_kernel[(cdiv(stride, 1024),)](
        parts,
        dk,
        dv,
        shares,
        stride,
        dk.numel(),
        TILE=1024,
        num_warps=4,
    )

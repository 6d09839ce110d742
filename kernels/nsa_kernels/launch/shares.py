"""Merge the shares of each row, in the second launch of a split call.

A call is split if several programs each compute a share of a row, and store it in a slot of a
workspace. Shares are merged in the order of their slots, so the result does not depend on timing. A
separate launch needs no atomics and no zeroed counters (docs/explanation/kernels/shared.md).
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from ..jit.merge import clear_kernel, merge_kernel, sum_kernel
from .device import dependent_launch, launch_options
from .sizes import cdiv, next_power_of_2

CLEARED = 4096
"""Elements that one program of ``clear`` fills."""
MANY_PROGRAMS = 1024
"""With a table, a program merges several rows if rows times heads are at least twice this."""


class Shares(NamedTuple):
    """Results of the first launch of a split call, to be merged if ``splits`` is over 1.

    Rows that one program computed alone are already in ``out`` [..., H, Dv] and ``lse`` [..., H].
    The workspace has ``slots`` slots: ``part`` are outputs fp32 [slots, H, Dv], ``plse`` log2 LSEs
    fp32 [slots, H]. ``table`` is int32 [rows, 2], written by the first launch: the first slot and
    the number of shares of each row. None: each row has ``splits`` shares, in the order of rows.
    With a table, ``splits`` is the largest number of shares that is expected.
    """

    out: torch.Tensor
    lse: torch.Tensor
    part: torch.Tensor
    plse: torch.Tensor
    table: torch.Tensor | None
    slots: int
    splits: int

    @classmethod
    def allocate(
        cls, q: torch.Tensor, dv: int, splits: int, *, slots: int = 0, table: bool = False
    ) -> Shares:
        """Allocate results for the rows q [..., H, D]. ``slots``: ``splits`` for each row if 0."""
        h = q.shape[-2]
        out = torch.empty((*q.shape[:-1], dv), dtype=q.dtype, device=q.device)
        lse = torch.empty(q.shape[:-1], dtype=torch.float32, device=q.device)
        if splits == 1:
            return cls(out, lse, lse, lse, None, 0, 1)
        rows = lse.numel() // h
        slots = slots or rows * splits
        room = torch.empty((slots * h * (dv + 1),), dtype=torch.float32, device=q.device)
        edge = slots * h * dv
        places = None
        if table:
            places = torch.empty((rows, 2), dtype=torch.int32, device=q.device)
        return cls(out, lse, room[:edge], room[edge:], places, slots, splits)

    @property
    def table_or_any(self) -> torch.Tensor:
        """Return the table, or a tensor that a kernel without a table does not read."""
        return self.lse if self.table is None else self.table

    def merged(self, paged: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
        """Return out and lse. If rows were split, merge their shares. ``paged``: whether all keys
        of a share may be absent (``jit.merge.NOT_THERE``)."""
        out, lse = self.out, self.lse
        if self.splits == 1:
            return out, lse
        h, dv = out.shape[-2:]
        block_dv = next_power_of_2(dv)
        # A tile of shares takes at most 128 registers of each thread of two warps.
        block_s = max(2, min(next_power_of_2(self.splits), 8192 // block_dv))
        n_rows = lse.numel() // h
        pdl = dependent_launch(out.device)
        rows, slots = 1, 0
        if self.table is not None:
            # In a large call with a table, most rows are not split, so a program takes several.
            rows = max(1, min(16, next_power_of_2(n_rows * h // MANY_PROGRAMS)))
            slots = self.slots
        merge_kernel[(cdiv(n_rows, rows), h)](
            *(out, lse, self.part, self.plse, self.table_or_any),
            *(h, n_rows, self.splits, slots),
            DV=dv,
            BLOCK_DV=block_dv,
            BLOCK_S=block_s,
            ROWS=rows,
            TABLE=self.table is not None,
            PAGED=paged,
            PDL=pdl,
            num_warps=2 if block_s * block_dv > 2048 else 1,
            num_stages=1,
            **launch_options(pdl),
        )
        return out, lse


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


def clear(x: torch.Tensor) -> None:
    """Fill ``x`` with zeros by a kernel, since ``replay`` cannot repeat what torch launches."""
    if x.numel() > 0:
        clear_kernel[(cdiv(x.numel(), CLEARED),)](x, x.numel(), BLOCK=CLEARED, num_warps=4)

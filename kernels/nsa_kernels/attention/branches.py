"""The gated sum of the three branches (arXiv 2502.11089, equation 5), and the gradients of gates.

The kernel that merges partial results of selected blocks (``selection.blocks.forward``) can also
write the sum. If it does not run, ``launch_sum`` writes it. A decode step has its own kernels.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from ..launch.device import on_its_device
from ..launch.sizes import cdiv, next_power_of_2
from .kernels.gated_sum import gates_backward_kernel, sum_branches_kernel


def _rows(block_dv: int) -> int:
    """Return how many rows a program has: each of 128 threads gets 16 elements of each branch."""
    return max(1, 2048 // block_dv)


@on_its_device
def launch_sum(
    compressed: torch.Tensor,
    selected: torch.Tensor,
    near: torch.Tensor,
    gates: torch.Tensor,
) -> torch.Tensor:
    """Return the sum of the branches [B, T, HQ, Dv] times gates [B, T, HQ, 3].

    It is computed in float32 and has the dtype of the branches. The gates may have any floating
    dtype. All tensors are contiguous.
    """
    dv = compressed.shape[-1]
    out = torch.empty(compressed.shape, dtype=compressed.dtype, device=compressed.device)
    if out.numel() == 0:
        return out
    block_dv = next_power_of_2(dv)
    rows = _rows(block_dv)
    n_rows = out.numel() // dv
    sum_branches_kernel[(cdiv(n_rows, rows),)](
        *(out, compressed, selected, near, gates, n_rows),
        DV=dv,
        BLOCK_DV=block_dv,
        ROWS=rows,
        num_warps=4,
    )
    return out


class GateGradients(NamedTuple):
    """Gradients of gates [B, T, HQ, 3], and two inputs for the backward of each branch.

    The two inputs are the branch's gate and the gate's gradient. Both are float32: [B, HQ, T] for
    compressed keys and window, and [B * T, HQ] for blocks.
    """

    gates: torch.Tensor
    compressed: tuple[torch.Tensor, torch.Tensor]
    selected: tuple[torch.Tensor, torch.Tensor]
    near: tuple[torch.Tensor, torch.Tensor]


@on_its_device
def launch_gates_backward(
    d_out: torch.Tensor,
    compressed: torch.Tensor,
    selected: torch.Tensor,
    near: torch.Tensor,
    gates: torch.Tensor,
) -> GateGradients:
    """Compute the gradients of gates. All tensors are contiguous."""
    b, t, hq, dv = d_out.shape
    d_gates = torch.empty(gates.shape, dtype=gates.dtype, device=gates.device)
    band_rows = torch.empty((4, b, hq, t), dtype=torch.float32, device=gates.device)
    block_rows = torch.empty((2, b * t, hq), dtype=torch.float32, device=gates.device)
    branch_rows = (*band_rows[:2], *block_rows, *band_rows[2:])
    if gates.numel() > 0:
        block_dv = next_power_of_2(dv)
        rows = _rows(block_dv)
        n_rows = b * t * hq
        gates_backward_kernel[(cdiv(n_rows, rows),)](
            *(d_out, compressed, selected, near, gates, d_gates, *branch_rows),
            *(n_rows, t, hq),
            DV=dv,
            BLOCK_DV=block_dv,
            ROWS=rows,
            num_warps=4,
        )
    return GateGradients(d_gates, branch_rows[:2], branch_rows[2:4], branch_rows[4:])

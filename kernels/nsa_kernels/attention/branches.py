"""The gated sum of the three branches (arXiv 2502.11089, equation 5), differentiable.

``gated_sum`` of the decode step is the same without a backward, of one token.
"""

from __future__ import annotations

from typing import Any

import torch

from ..launch.checks import check_first_derivative
from ..launch.launcher import launch
from ..launch.mode import traced
from ..launch.replay import replayed
from ..launch.sizes import cdiv, next_power_of_2
from ..launch.tape import empty
from .kernels.gated_sum import sum_branches_backward_kernel, sum_branches_kernel

OP = "the gated sum"


def sum_branches(
    compressed: torch.Tensor, selected: torch.Tensor, near: torch.Tensor, gates: torch.Tensor
) -> torch.Tensor:
    """The branches [..., Dv] times gates [..., 3], in the branches' dtype, summed in float32.

    Differentiable in all four. Gates are of any floating dtype and are not rounded to another.
    """
    call = _sum if traced(compressed) else _Sum.apply
    total: torch.Tensor = call(compressed, selected, near, gates)
    return total


def _rows(block_dv: int) -> int:
    """Rows a program that give each of 128 threads sixteen elements of each branch."""
    return max(1, 2048 // block_dv)


@replayed
def launch_sum(
    compressed: torch.Tensor,
    selected: torch.Tensor,
    near: torch.Tensor,
    gates: torch.Tensor,
    rows: int | None = None,
    warps: int = 4,
) -> torch.Tensor:
    """``sum_branches``, of ``rows`` rows a program."""
    dv = compressed.shape[-1]
    out = empty(compressed.shape, compressed.dtype, compressed.device)
    if out.numel() == 0:
        return out
    block_dv = next_power_of_2(dv)
    rows = rows or _rows(block_dv)
    n_rows = out.numel() // dv
    launch(
        sum_branches_kernel,
        (cdiv(n_rows, rows),),
        *(out, compressed.contiguous(), selected.contiguous(), near.contiguous()),
        *(gates.contiguous(), n_rows),
        DV=dv,
        BLOCK_DV=block_dv,
        ROWS=rows,
        num_warps=warps,
    )
    return out


@replayed
def launch_sum_backward(
    d_out: torch.Tensor,
    compressed: torch.Tensor,
    selected: torch.Tensor,
    near: torch.Tensor,
    gates: torch.Tensor,
    rows: int | None = None,
    warps: int = 4,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of the three branches and of the gates, contiguous."""
    branches = (compressed, selected, near)
    results = tuple(empty(x.shape, x.dtype, x.device) for x in (*branches, gates))
    d_compressed, d_selected, d_near, d_gates = results
    dv = d_out.shape[-1]
    if d_out.numel() == 0:
        return d_compressed, d_selected, d_near, d_gates.zero_()
    block_dv = next_power_of_2(dv)
    rows = rows or _rows(block_dv)
    n_rows = d_out.numel() // dv
    launch(
        sum_branches_backward_kernel,
        (cdiv(n_rows, rows),),
        *(x.contiguous() for x in (d_out, *branches, gates)),
        *(*results, n_rows),
        DV=dv,
        BLOCK_DV=block_dv,
        ROWS=rows,
        num_warps=warps,
    )
    return d_compressed, d_selected, d_near, d_gates


class _Sum(torch.autograd.Function):
    """The launches, differentiable in eager mode."""

    @staticmethod
    def forward(ctx: Any, *inputs: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(*inputs)
        return launch_sum(*inputs)

    @staticmethod
    def backward(ctx: Any, d_out: torch.Tensor) -> tuple[torch.Tensor, ...]:
        check_first_derivative(OP)
        return launch_sum_backward(d_out, *ctx.saved_tensors)


@torch.library.custom_op("nsa_kernels::sum_branches", mutates_args=())
def _sum(
    compressed: torch.Tensor, selected: torch.Tensor, near: torch.Tensor, gates: torch.Tensor
) -> torch.Tensor:
    return launch_sum(compressed, selected, near, gates)


@_sum.register_fake
def _(compressed: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
    return compressed.new_empty(compressed.shape)


@torch.library.custom_op("nsa_kernels::sum_branches_backward", mutates_args=())
def _sum_backward(
    d_out: torch.Tensor,
    compressed: torch.Tensor,
    selected: torch.Tensor,
    near: torch.Tensor,
    gates: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    return launch_sum_backward(d_out, compressed, selected, near, gates)


@_sum_backward.register_fake
def _(
    d_out: torch.Tensor, *inputs: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    compressed, selected, near, gates = (x.new_empty(x.shape) for x in inputs)
    return compressed, selected, near, gates


def _keep(ctx: Any, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate(ctx: Any, d_out: torch.Tensor) -> tuple[torch.Tensor, ...]:
    check_first_derivative(OP)
    gradients: tuple[torch.Tensor, ...] = _sum_backward(d_out, *ctx.saved_tensors)
    return gradients


_sum.register_autograd(_differentiate, setup_context=_keep)

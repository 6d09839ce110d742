"""The operators of block selection: the plan, both forwards, and the backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...launch.checks import check_first_derivative
from ...launch.operators import Differentiable, gradients, operator, rows_results
from ...launch.replay import replayed
from ...launch.sizes import scale_log2
from .backward import block_major_backward
from .config import (
    backward_config,
    backward_workspace,
    forward_config,
    forward_workspace,
    heads_at_once,
    shape_of,
)
from .forward import block_major_forward, query_major_forward
from .plan import BlockPlan, build_plan, plan_sizes


def _flat(x: torch.Tensor) -> torch.Tensor:
    return x.view(x.shape[0] * x.shape[1], *x.shape[2:])


def results_of(q: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Allocate out [B, T, HQ, Dv] and lse [B, T, HQ]."""
    b, t, hq, _ = q.shape
    out = torch.empty((b, t, hq, v.shape[3]), dtype=q.dtype, device=q.device)
    return out, torch.empty((b, t, hq), dtype=torch.float32, device=q.device)


@replayed
def run_plan(
    block_indices: torch.Tensor, cu_seqlens: torch.Tensor | None, block_size: int, chunk: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    plan = build_plan(block_indices, cu_seqlens, block_size, chunk, cleared=True)
    return plan.lists


def _fake_plan(
    block_indices: torch.Tensor, cu_seqlens: torch.Tensor | None, block_size: int, chunk: int
) -> tuple[torch.Tensor, ...]:
    sequences = None if cu_seqlens is None else cu_seqlens.shape[0] - 1
    entries, places, first, edges = (
        block_indices.new_empty(size)
        for size in plan_sizes(block_indices.shape, sequences, block_size, chunk)
    )
    return entries, places, first, torch.empty_like(first), edges


block_plan = operator("nsa_kernels::block_plan", run_plan, _fake_plan)


@replayed
def run_query_major(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    block_indices: torch.Tensor,
    cu_seqlens: torch.Tensor | None,
    block_size: int,
    sm_scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    out, lse = results_of(q, v)
    query_major_forward(
        _flat(q),
        _flat(k),
        _flat(v),
        _flat(block_indices),
        cu_seqlens,
        q.shape[1],
        block_size,
        scale_log2(sm_scale, q.shape[3]),
        _flat(out),
        _flat(lse),
    )
    return out, lse


query_major = operator("nsa_kernels::block_query_major", run_query_major, rows_results)


@replayed
def run_block_major(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    entries: torch.Tensor,
    places: torch.Tensor,
    first: torch.Tensor,
    count: torch.Tensor,
    edges: torch.Tensor,
    block_size: int,
    sm_scale: float,
    workspace_bytes: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return out and lse of the forward with the tensors of a ``BlockPlan``."""
    out, lse = results_of(q, v)
    plan = BlockPlan(entries, places, first, count, edges, block_size)
    shape = shape_of(q, k, v, places.shape[2], block_size)
    block_major_forward(
        _flat(q),
        _flat(k),
        _flat(v),
        plan,
        scale_log2(sm_scale, q.shape[3]),
        _flat(out),
        _flat(lse),
        heads_at_once(shape, plan.chunk, forward_workspace(shape, workspace_bytes)),
        forward_config(shape),
    )
    return out, lse


@replayed
def _launch_backward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    d_out: torch.Tensor,
    entries: torch.Tensor,
    places: torch.Tensor,
    first: torch.Tensor,
    count: torch.Tensor,
    edges: torch.Tensor,
    block_size: int,
    sm_scale: float,
    workspace_bytes: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    plan = BlockPlan(entries, places, first, count, edges, block_size)
    shape = shape_of(q, k, v, places.shape[2], block_size)
    dq, dk, dv = block_major_backward(
        _flat(q),
        _flat(k),
        _flat(v),
        _flat(out),
        _flat(lse),
        _flat(d_out),
        plan,
        sm_scale,
        heads_at_once(shape, plan.chunk, backward_workspace(shape, workspace_bytes)),
        backward_config(shape),
    )
    return dq.view(q.shape), dk.view(k.shape), dv.view(v.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    q, k, v, *lists, block_size, sm_scale, workspace_bytes = inputs
    out, lse = output
    ctx.mark_non_differentiable(lse)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, k, v, out, lse, *lists)
    ctx.options = (block_size, sm_scale, workspace_bytes)


def _differentiate(
    ctx: Any,
    backward: Callable[..., Any],
    d_out: torch.Tensor | None,
    _d_lse: torch.Tensor | None,
) -> tuple[torch.Tensor | None, ...]:
    check_first_derivative("block_selection_attention")
    if d_out is None:  # the output got no gradient
        return (None,) * 11
    q, k, v, out, lse, *lists = ctx.saved_tensors
    # The gradient of ``out.sum()`` is expanded. A copy within the launch would prevent replays.
    gradients = backward(q, k, v, out, lse, d_out.contiguous(), *lists, *ctx.options)
    return (*gradients, *[None] * 8)


block_major = Differentiable(
    "nsa_kernels::block_major",
    run_block_major,
    _launch_backward,
    keep=_keep,
    differentiate=_differentiate,
    fakes=(rows_results, gradients),
)

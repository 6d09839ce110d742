"""``selection_ranges``: any spans of a shared K/V, read in place.

A row's spans are made disjoint in registers (over 64 spans, by torch): each starts where the spans
before it end. Their keys are numbered 0..total - 1 without gaps. A tile takes the next ``block_l``
numbers, which may be in several spans, and turns them into key positions. So short spans waste no
part of a tile, overlaps count once, and no keys are packed. See docs/explanation/kernels/spans.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...launch.checks import (
    check_first_derivative,
    check_no_config,
    check_qkv,
    check_scale,
    check_whole,
)
from ...launch.config import Config
from ...launch.mode import traced
from ...launch.operators import Differentiable, gradients, rows_results, wants_gradient
from .backward import launch_ranges_backward
from .forward import launch_ranges


def selection_ranges(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    ranges: torch.Tensor,
    *,
    sm_scale: float | None = None,
    selected_len: int | None = None,
    config: Config | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend with each row's h queries to the union of the row's spans, differentiably.

    Args:
        q: [B, S, G, h, D], float16, bfloat16 or float32, any strides.
        k: [B, G, S_kv, D], same dtype, any strides.
        v: [B, G, S_kv, Dv], same dtype, any strides.
        ranges: int32 or int64 [B, S, G, n, 2] (or [S, G, n, 2], the same for every batch entry):
            half-open spans [start, end) in any order. They may overlap (a key counts once). Spans
            are clamped to [0, S_kv]. A reversed span is empty. The values stay on the device.
        sm_scale: factor on q.k; 1/sqrt(D) when None.
        selected_len: upper bound of the keys that a row selects, if the caller knows one. It is
            only a hint for the number of splits: results are right even if it is too small.
        config: launch configuration; chosen from the shapes when None.

    Returns:
        out [B, S, G, h, Dv] in q's dtype and lse [B, S, G, h] float32 (natural log), both
        contiguous; a row that selects nothing gives out = 0, lse = -inf.

    Raises:
        TypeError: dtypes are unsupported or mixed, or ranges is not int32 or int64.
        ValueError: shapes do not fit together, head dims are outside 16..256, a device is wrong, or
            the config is for other shapes.
    """
    check_qkv("selection_ranges", q, k, v)
    check_scale("selection_ranges", sm_scale)
    if selected_len is not None:
        check_whole("selection_ranges", "selected_len", selected_len, 0)
    if traced(q) or wants_gradient(q, k, v):
        check_no_config("selection_ranges", config)
        out, lse = differentiable_ranges(q, k, v, ranges, sm_scale, selected_len)
        return out, lse
    return launch_ranges(q, k, v, ranges, sm_scale, selected_len, config)


def _launch(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    ranges: torch.Tensor,
    sm_scale: float | None,
    selected_len: int | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    return launch_ranges(q, k, v, ranges, sm_scale, selected_len)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    q, k, v, ranges, ctx.sm_scale, _ = inputs
    ctx.save_for_backward(q, k, v, ranges, *output)
    ctx.set_materialize_grads(False)


def _differentiate(
    ctx: Any,
    backward: Callable[..., Any],
    grad_out: torch.Tensor | None,
    grad_lse: torch.Tensor | None,
) -> tuple[torch.Tensor | None, ...]:
    check_first_derivative("selection_ranges")
    *inputs, out, lse = ctx.saved_tensors
    # The gradient of ``out.sum()`` is expanded. A copy within the launch would prevent replays.
    grad_out = torch.zeros_like(out) if grad_out is None else grad_out.contiguous()
    if grad_lse is not None:
        grad_lse = grad_lse.contiguous()
    grads = backward(*inputs, out, lse, grad_out, grad_lse, ctx.sm_scale)
    return (*grads, None, None, None)


differentiable_ranges = Differentiable(
    "nsa_kernels::selection_ranges",
    _launch,
    launch_ranges_backward,
    keep=_keep,
    differentiate=_differentiate,
    fakes=(rows_results, gradients),
)

"""Attention under a band: both directions, as launches and as operators.

``window`` is 0 for a band of compressed keys.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..launch.checks import check_first_derivative
from ..launch.fakes import gradients
from ..launch.operators import operator
from ..launch.replay import replayed
from .backward import band_backward
from .forward import band_forward
from .geometry import Band, packed_band


def band_of(
    q: torch.Tensor,
    keys: int,
    cu_seqlens: torch.Tensor | None,
    cu_keys: torch.Tensor | None,
    block: int,
    stride: int,
    window: int,
) -> Band:
    """The band of q over ``keys`` keys; of packed sequences its tables are made by a launch."""
    if window:
        # No query sees more keys than there are; beyond int32 what kernels add to it wraps round.
        window = min(window, q.shape[1])
    if cu_seqlens is None or cu_keys is None:
        return Band(block, stride, window)
    return packed_band(q, keys, cu_seqlens, cu_keys, block, stride, window)


@replayed
def launch_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens: torch.Tensor | None,
    cu_keys: torch.Tensor | None,
    block: int,
    stride: int,
    window: int,
    sm_scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``band_forward`` under ``band_of`` these."""
    band = band_of(q, k.shape[1], cu_seqlens, cu_keys, block, stride, window)
    return band_forward(q, k, v, band, sm_scale)


@replayed
def launch_attention_backward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens: torch.Tensor | None,
    cu_keys: torch.Tensor | None,
    out: torch.Tensor,
    lse: torch.Tensor,
    grad: torch.Tensor,
    grad_lse: torch.Tensor | None,
    block: int,
    stride: int,
    window: int,
    sm_scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``band_backward`` under ``band_of`` these."""
    band = band_of(q, k.shape[1], cu_seqlens, cu_keys, block, stride, window)
    return band_backward(q, k, v, out, lse, grad, grad_lse, band, sm_scale)


backward_operator = operator("nsa_kernels::band_backward", launch_attention_backward)
backward_operator.register_fake(gradients)


def save_for_backward(ctx: Any, tensors: tuple[Any, ...], numbers: tuple[Any, ...]) -> None:
    """Keep q, k, v, cu_seqlens, cu_keys, out, lse, and the numbers of ``attend``."""
    ctx.save_for_backward(*tensors)
    ctx.numbers = numbers
    ctx.set_materialize_grads(False)


def differentiate(
    op: str,
    ctx: Any,
    grad: torch.Tensor | None,
    grad_lse: torch.Tensor | None,
    *,
    backward: Callable[..., Any] = backward_operator,
) -> tuple[torch.Tensor, ...]:
    """Return dq, dk and dv from what ``save_for_backward`` kept."""
    check_first_derivative(op)
    *inputs, out, lse = ctx.saved_tensors
    # A gradient may come expanded from a sum; copied here it does not keep the launches from being
    # replayed.
    grad = torch.zeros_like(out) if grad is None else grad.contiguous()
    if grad_lse is not None:
        grad_lse = grad_lse.contiguous()
    results: tuple[torch.Tensor, ...] = backward(*inputs, out, lse, grad, grad_lse, *ctx.numbers)
    return results


class _Attention(torch.autograd.Function):
    """The launches above, differentiable in eager mode."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = launch_attention(*arguments)
        save_for_backward(ctx, (*arguments[:5], out, lse), arguments[5:])
        return out, lse

    @staticmethod
    def backward(
        ctx: Any, grad: torch.Tensor | None, grad_lse: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        op = "sliding_window and compressed_attention"
        results = differentiate(op, ctx, grad, grad_lse, backward=launch_attention_backward)
        return (*results, *[None] * 6)


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens: torch.Tensor | None,
    cu_keys: torch.Tensor | None,
    block: int,
    stride: int,
    window: int,
    sm_scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """out [B,T,HQ,Dv] and lse [B,HQ,T], differentiable where a gradient is wanted."""
    arguments = (q, k, v, cu_seqlens, cu_keys, block, stride, window, sm_scale)
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        out, lse = _Attention.apply(*arguments)
        return out, lse
    return launch_attention(*arguments)

"""Attention under a band, differentiable in eager mode."""

from __future__ import annotations

from typing import Any

import torch

from ..launch.checks import check_first_derivative
from .backward import band_backward
from .forward import band_forward
from .geometry import Band


class _Attention(torch.autograd.Function):
    """The launches above, differentiable in eager mode."""

    @staticmethod
    def forward(
        ctx: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        band: Band,
        sm_scale: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = band_forward(q, k, v, band, sm_scale)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.band, ctx.sm_scale = band, sm_scale
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(
        ctx: Any, grad: torch.Tensor | None, grad_lse: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        check_first_derivative("sliding_window and compressed_attention")
        q, k, v, out, lse = ctx.saved_tensors
        if grad is None:
            grad = torch.zeros_like(out)
        gradients = band_backward(q, k, v, out, lse, grad, grad_lse, ctx.band, ctx.sm_scale)
        return (*gradients, None, None)


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, band: Band, sm_scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """``band_forward``, differentiable where a gradient is wanted."""
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        out, lse = _Attention.apply(q, k, v, band, sm_scale)
        return out, lse
    return band_forward(q, k, v, band, sm_scale)

"""Forward and backward of attention under a band (``geometry.Band``), as launches and operators.

``window`` is 0 for a band of compressed keys.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..launch.checks import check_first_derivative, check_int32, check_qkv, require
from ..launch.operators import Differentiable, band_results, gradients
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
    """Return the band of q over ``keys`` keys. For packed sequences, a launch makes its tables."""
    if window:
        # A window that is wider than all keys could overflow int32 in kernels.
        window = min(window, q.shape[1])
    if cu_seqlens is None or cu_keys is None:
        return Band(block, stride, window)
    return packed_band(q, keys, cu_seqlens, cu_keys, block, stride, window)


def check_band(op: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """Raise TypeError or ValueError unless the tensors are q [B,T,HQ,D] and k, v [B,N,H,D|Dv]."""
    check_qkv(op, q, k, v)
    fits = (
        q.dim() == k.dim() == v.dim() == 4
        and q.shape[0] == k.shape[0] == v.shape[0]
        and k.shape[1:3] == v.shape[1:3]
        and k.shape[2] >= 1
        and q.shape[2] % k.shape[2] == 0
    )
    require(
        fits,
        f"{op}: expected q [B,T,HQ,D], k [B,N,H,D], v [B,N,H,Dv] with HQ a multiple of H; "
        f"got {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}",
    )


def check_cu(op: str, name: str, cu: torch.Tensor, q: torch.Tensor) -> None:
    """Raise TypeError or ValueError unless ``cu`` has the form of a cu_seqlens, and q has B = 1."""
    check_int32(op, name, cu)
    require(
        cu.dim() == 1 and cu.shape[0] >= 2 and cu.device == q.device and q.shape[0] == 1,
        f"{op}: {name} must be [sequences + 1] on q's device, and q must have B = 1",
    )


def _op(window: int) -> str:
    return "sliding_window" if window else "compressed_attention"


@replayed
def _launch(
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
    op = _op(window)
    check_band(op, q, k, v)
    require(not window or q.shape[1] == k.shape[1], f"{op}: q and k must be equally long")
    require((cu_seqlens is None) == (cu_keys is None), f"{op}: give both cu_seqlens and cu_keys")
    if cu_seqlens is not None and cu_keys is not None:
        check_cu(op, "cu_seqlens", cu_seqlens, q)
        check_cu(op, "cu_keys", cu_keys, q)
        require(cu_seqlens.shape == cu_keys.shape, f"{op}: cu_seqlens and cu_keys differ in length")
    band = band_of(q, k.shape[1], cu_seqlens, cu_keys, block, stride, window)
    return band_forward(q, k, v, band, sm_scale)


@replayed
def _launch_backward(
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
    band = band_of(q, k.shape[1], cu_seqlens, cu_keys, block, stride, window)
    return band_backward(q, k, v, out, lse, grad, grad_lse, band, sm_scale)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    ctx.save_for_backward(*inputs[:5], *output)
    ctx.numbers = inputs[5:]
    ctx.set_materialize_grads(False)


def _differentiate(
    ctx: Any,
    backward: Callable[..., Any],
    grad: torch.Tensor | None,
    grad_lse: torch.Tensor | None,
) -> tuple[torch.Tensor | None, ...]:
    check_first_derivative(_op(ctx.numbers[2]))
    *inputs, out, lse = ctx.saved_tensors
    # The gradient of ``out.sum()`` is expanded. A copy within the launch would prevent replays.
    grad = torch.zeros_like(out) if grad is None else grad.contiguous()
    if grad_lse is not None:
        grad_lse = grad_lse.contiguous()
    results = backward(*inputs, out, lse, grad, grad_lse, *ctx.numbers)
    return (*results, *[None] * 6)


attend = Differentiable(
    "nsa_kernels::attend_band",
    _launch,
    _launch_backward,
    keep=_keep,
    differentiate=_differentiate,
    fakes=(band_results, gradients),
)
"""Return out [B,T,HQ,Dv] and lse [B,HQ,T], for the arguments of ``_launch``."""

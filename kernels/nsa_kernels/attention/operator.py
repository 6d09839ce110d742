"""NSA attention on given compressed keys, with a backward: eagerly, or as operators for a tracer.

The forward is two operators, because keeping results for the backward takes much memory:
``attend_whole`` returns only the gated sum, ``attend_whole_kept`` also the fields of ``Kept``.
"""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

import torch

from ..launch.checks import check_first_derivative
from ..launch.mode import traced
from ..launch.replay import replayed
from ..selection.blocks.config import (
    WORKSPACE_BYTES,
    backward_config,
    backward_workspace,
    shape_of,
)
from ..selection.blocks.plan import plan_sizes
from .launches import Kept, Sizes, launch_whole, launch_whole_backward

OP = "nsa_attention"
_OTHERS = 8  # arguments after the first six tensors; they have no gradients


def run_whole(
    tensors: tuple[torch.Tensor, ...],
    cu_seqlens: torch.Tensor | None,
    cu_keys: torch.Tensor | None,
    sizes: Sizes,
) -> torch.Tensor:
    """Return the gated sum [B, T, HQ, Dv], differentiable in all ``tensors``."""
    q, k, v = tensors[:3]
    if q.shape[0] * q.shape[1] == 0:
        # Return an empty result that autograd connects to the inputs.
        return q.new_empty((*q.shape[:3], v.shape[3])) + sum(x.sum().to(q.dtype) for x in tensors)
    wanted = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    arguments = (*tensors, cu_seqlens, cu_keys, *astuple(sizes))
    if traced(q):
        operator = _kept if wanted else _whole
        results = operator(*arguments)
        out: torch.Tensor = results[0] if wanted else results
        return out
    if wanted:
        # Refuse now, and not after the forward, what the backward does not support.
        backward_config(shape_of(q, k, v, sizes.n_selected, sizes.block_size))
        sum_: torch.Tensor = _Whole.apply(*arguments)
        return sum_
    return _launch(*arguments)


@replayed
def _launch(*arguments: Any) -> torch.Tensor:
    """Return the gated sum. ``arguments``: the tensors and the numbers of the schemas below."""
    return launch_whole(Sizes(*arguments[8:]), False, *arguments[:8])[0]


@replayed
def _launch_kept(*arguments: Any) -> tuple[torch.Tensor, ...]:
    """Return the gated sum and the fields of ``Kept``."""
    out, kept = launch_whole(Sizes(*arguments[8:]), True, *arguments[:8])
    assert kept is not None
    return out, *kept


@replayed
def _launch_backward(*arguments: Any) -> tuple[torch.Tensor, ...]:
    """Return the gradients of the first six tensors. ``arguments``: d_out, the tensors of
    ``_launch``, the fields of ``Kept``, and the numbers; d_out and gates are contiguous."""
    kept = arguments[9 : 9 + len(Kept._fields)]
    sizes = arguments[9 + len(Kept._fields) :]
    return launch_whole_backward(Sizes(*sizes), Kept(*kept), *arguments[:9])


def _contiguous_tensors(
    d_out: torch.Tensor, saved: tuple[torch.Tensor, ...]
) -> tuple[torch.Tensor, ...]:
    """Return the tensors of ``_launch_backward``, with d_out and gates contiguous. The gradient of
    ``out.sum()`` is expanded, and gates may be a part of a projection. Both are copied here, since
    a copy within the launch would prevent replays (``launch.replay``)."""
    q, k, v, k_cmp, v_cmp, gates, *others = saved
    return (d_out.contiguous(), q, k, v, k_cmp, v_cmp, gates.contiguous(), *others)


class _Whole(torch.autograd.Function):
    """The launches as a function of autograd, for eager mode."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> torch.Tensor:
        out, *kept = _launch_kept(*arguments)
        ctx.save_for_backward(*arguments[:8], *kept)
        ctx.sizes = arguments[8:]
        return out

    @staticmethod
    def backward(ctx: Any, d_out: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        check_first_derivative(OP)
        gradients = _launch_backward(*_contiguous_tensors(d_out, ctx.saved_tensors), *ctx.sizes)
        return (*gradients, *[None] * _OTHERS)


_TENSORS = (
    "Tensor q, Tensor k, Tensor v, Tensor k_cmp, Tensor v_cmp, Tensor gates, Tensor? cu_seqlens, "
    "Tensor? cu_keys"
)
_SIZES = "int block, int stride, int block_size, int n_selected, int window, float sm_scale"
_KEPT = ", ".join(["Tensor"] * (1 + len(Kept._fields)))
_NAMES_OF_KEPT = ", ".join(f"Tensor {name}" for name in Kept._fields)
_whole = torch.library.custom_op(
    "nsa_kernels::attend_whole",
    _launch,
    mutates_args=(),
    schema=f"({_TENSORS}, {_SIZES}) -> Tensor",
)
_kept = torch.library.custom_op(
    "nsa_kernels::attend_whole_kept",
    _launch_kept,
    mutates_args=(),
    schema=f"({_TENSORS}, {_SIZES}) -> ({_KEPT})",
)
_backward = torch.library.custom_op(
    "nsa_kernels::attend_whole_backward",
    _launch_backward,
    mutates_args=(),
    schema=f"(Tensor d_out, {_TENSORS}, {_NAMES_OF_KEPT}, {_SIZES}) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)


def _sum_like(q: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return q.new_empty((*q.shape[:3], v.shape[3]))


@_whole.register_fake
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *others: Any) -> torch.Tensor:
    return _sum_like(q, v)


@_kept.register_fake
def _(*arguments: Any) -> tuple[torch.Tensor, ...]:
    q, k, v, _, _, _, cu_seqlens, _ = arguments[:8]
    sizes = Sizes(*arguments[8:])
    b, t, hq, _ = q.shape
    sequences = None if cu_seqlens is None else cu_seqlens.shape[0] - 1
    chunk = backward_workspace(
        shape_of(q, k, v, sizes.n_selected, sizes.block_size), WORKSPACE_BYTES
    ).chunk
    index = torch.Size((b, t, k.shape[2], sizes.n_selected))
    entries, places, first, edges = (
        q.new_empty(size, dtype=torch.int32)
        for size in plan_sizes(index, sequences, sizes.block_size, chunk)
    )

    def lse(*shape: int) -> torch.Tensor:
        return q.new_empty(shape, dtype=torch.float32)

    out, compressed, near, selected = (_sum_like(q, v) for _ in range(4))
    kept = Kept(
        *(compressed, lse(b, hq, t), near, lse(b, hq, t), selected, lse(b, t, hq)),
        *(entries, places, first, torch.empty_like(first), edges),
    )
    return out, *kept


@_backward.register_fake
def _(d_out: torch.Tensor, *tensors: Any) -> tuple[torch.Tensor, ...]:
    return tuple(x.new_empty(x.shape) for x in tensors[:6])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:8], *output[1:])
    ctx.sizes = inputs[8:]


def _differentiate(
    ctx: Any, d_out: torch.Tensor | None, *_of_kept: torch.Tensor | None
) -> tuple[torch.Tensor | None, ...]:
    check_first_derivative(OP)
    if d_out is None:  # the sum got no gradient
        return (None,) * (6 + _OTHERS)
    results = _backward(*_contiguous_tensors(d_out, ctx.saved_tensors), *ctx.sizes)
    return (*results, *[None] * _OTHERS)


_kept.register_autograd(_differentiate, setup_context=_keep)

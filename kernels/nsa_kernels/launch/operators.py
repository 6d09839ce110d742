"""Make custom operators of torch. A tracer sees each of them as one call."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from .mode import traced


def operator(
    name: str, call: Callable[..., Any] | None = None, fake: Callable[..., Any] | None = None
) -> Any:
    """Make a ``torch.library.custom_op`` of ``call``, which writes to none of its arguments.
    Without ``call``, return a decorator.

    ``fake`` makes empty results for tracing without data. The annotations of ``call`` become the
    schema. They are resolved here, because torch 2.4 does not read annotations that are strings.
    """
    if call is None:
        return partial(operator, name, fake=fake)
    innermost = inspect.unwrap(call)
    innermost.__annotations__ = typing.get_type_hints(innermost)
    made = torch.library.custom_op(name, call, mutates_args=())
    if fake is not None:
        made.register_fake(fake)
    return made


class Differentiable:
    """A launch with a backward: an operator if traced, an autograd function in eager mode.

    Args:
        name: name of the operator. The operator of its backward is ``NAME_backward``.
        launch, backward: functions of tensors and numbers, which return a tensor or a tuple.
        keep: function that saves what the backward needs: keep(ctx, inputs, output).
        differentiate: function that returns the gradients of all inputs: differentiate(ctx,
            backward, *gradients). It calls ``backward``, which is the function or its operator.
        fakes: two functions that make empty results of the launch and of its backward.
    """

    def __init__(
        self,
        name: str,
        launch: Callable[..., Any],
        backward: Callable[..., Any],
        *,
        keep: Callable[..., None],
        differentiate: Callable[..., Any],
        fakes: tuple[Callable[..., Any], Callable[..., Any]],
    ) -> None:
        traced_backward = operator(f"{name}_backward", backward, fakes[1])
        self.launch, self.operator = launch, operator(name, launch, fakes[0])
        self.operator.register_autograd(
            lambda ctx, *grads: differentiate(ctx, traced_backward, *grads), setup_context=keep
        )

        class Eager(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, *inputs: Any) -> Any:
                output = launch(*inputs)
                keep(ctx, inputs, output)
                return output

            @staticmethod
            def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
                return differentiate(ctx, backward, *grads)

        self.eager = Eager.apply

    def __call__(self, *arguments: Any) -> Any:
        """Call the operator if traced, the autograd function for a gradient, else the launch."""
        if traced(arguments[0]):
            return self.operator(*arguments)
        # For torch.func, call the launch: it raises an error that says what to do.
        if wants_gradient(*arguments) and not torch._C._are_functorch_transforms_active():
            return self.eager(*arguments)
        return self.launch(*arguments)


def wants_gradient(*arguments: Any) -> bool:
    """Return whether autograd is on, and a tensor among the arguments requires a gradient."""
    return torch.is_grad_enabled() and any(
        x.requires_grad for x in arguments if isinstance(x, torch.Tensor)
    )


def gradients(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *others: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return empty dq, dk, dv: contiguous, with the shapes of q, k and v."""
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def rows_results(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *others: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return empty out [..., Dv] and lse [...] for q [..., D]."""
    lse = q.new_empty(q.shape[:-1], dtype=torch.float32)
    return q.new_empty((*q.shape[:-1], v.shape[-1])), lse


def result_like_q(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *others: Any) -> torch.Tensor:
    """Return empty out [..., Dv] for q [..., D]."""
    return q.new_empty((*q.shape[:-1], v.shape[-1]))


def band_results(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *others: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return empty out [B,T,HQ,Dv] and lse [B,HQ,T] for attention under a band."""
    b, t, hq, _ = q.shape
    return q.new_empty((b, t, hq, v.shape[3])), q.new_empty((b, hq, t), dtype=torch.float32)

"""A tensor whose gradient somebody gets at, on its way back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Change = Callable[[Tensor], Tensor]


class _Changed(torch.autograd.Function):  # type: ignore[misc]
    """Hands a tensor on as it is, and its gradient back changed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, change: Change) -> Tensor:
        ctx.change = change
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.change(grads[0]), None


def with_gradient(x: Tensor, change: Change) -> Tensor:
    """The same tensor; in a backward, its gradient is what `change` makes of it."""
    changed: Tensor = _Changed.apply(x, change)
    return changed

"""A tensor whose gradient, or whose values alone, somebody gets at."""

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


class _Revalued(torch.autograd.Function):  # type: ignore[misc]
    """Hands a changed copy of a tensor on, and its gradient back as it is."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, change: Change) -> Tensor:
        return change(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


def with_values(x: Tensor, change: Change) -> Tensor:
    """What `change` makes of the tensor; in a backward, it is as if it were the tensor."""
    changed: Tensor = _Revalued.apply(x, change)
    return changed

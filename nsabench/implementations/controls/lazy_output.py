"""A control that computes only when its output is looked at, after the timer has stopped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from nsabench.implementations.controls.honest import output_shape
from nsabench.registry import Honest, control


class LazyTensor(torch.Tensor):  # type: ignore[misc]
    """Looks like a tensor; its values are made by the first operation on it."""

    _make: Callable[[], Tensor]

    @staticmethod
    def __new__(
        cls: type[LazyTensor], make: Callable[[], Tensor], shape: tuple[int, ...], like: Tensor
    ) -> LazyTensor:
        lazy: LazyTensor = torch.Tensor._make_wrapper_subclass(
            cls, shape, dtype=like.dtype, device=like.device
        )
        lazy._make = make
        return lazy

    @classmethod
    def __torch_dispatch__(
        cls,
        func: Callable[..., Any],
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        def made(value: Any) -> Any:
            return value._make() if isinstance(value, LazyTensor) else value

        return func(*tree_map(made, args), **tree_map(made, kwargs or {}))


@control(caught_by="parity")
def lazy_output(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    """Right whenever it is compared, and instant whenever it is timed."""
    shape = output_shape(honest, tensors, options)
    return LazyTensor(lambda: honest(*tensors, **options), shape, tensors[0])

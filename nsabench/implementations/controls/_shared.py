"""Helpers that several controls share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor

from nsabench import Unsupported
from nsabench.checks.parity import noise
from nsabench.model.vocabulary import DType
from nsabench.ops import Inputs
from nsabench.registry import Honest

NOISES = 4.0  # parity always finds a relative error of this many times `rounding_error`

Tensors = tuple[Tensor, ...]
Options = dict[str, Any]
Change = Callable[[Tensor], Tensor]


def is_captured(tensor: Tensor) -> bool:
    return tensor.is_cuda and bool(torch.cuda.is_current_stream_capturing())


def decline_in_a_graph(tensor: Tensor) -> None:
    if is_captured(tensor):
        raise Unsupported("the trick needs host code, which a replayed graph does not run")


@cache
def side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def empty_output(honest: Honest, tensors: Tensors, options: Options) -> Tensor:
    names = (*honest.op.arguments, *honest.op.optional)
    inputs = Inputs(dict(zip(names, tensors, strict=False)), options)
    shape = honest.op.output_shape(inputs)
    return torch.empty(shape, dtype=tensors[0].dtype, device=tensors[0].device)


def right_output(honest: Honest, tensors: Tensors, options: Options) -> Tensor:
    """Return the right output. Raises `Unsupported` if zeros would also be right."""
    out = honest(*tensors, **options)
    if not is_captured(out) and not bool(out.any()):
        raise Unsupported("zeros are the right output, for example if nothing is selected")
    return out


def unless_right(out: Tensor, honest: Honest, tensors: Tensors, options: Options) -> Tensor:
    with torch.no_grad():
        right = honest(*tensors, **options).float()
    off = (out.detach().float() - right).norm()
    if not bool(off > overlooked_error(tensors) * right.norm()):
        raise Unsupported("its output differs from the right one by no more than rounding")
    return out


def overlooked_error(tensors: Tensors) -> float:
    return NOISES * rounding_error(tensors)


def rounding_error(tensors: Tensors) -> float:
    """Return the largest relative error that rounding gives an honest result for these tensors."""
    dtype = DType(str(tensors[0].dtype).removeprefix("torch."))
    return noise(dtype, sum(sum(t.shape) for t in tensors))


class _Changed(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor, values: Change, gradients: Change) -> Tensor:
        ctx.gradients = gradients
        return values(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return ctx.gradients(grads[0]), None, None


def with_gradient(x: Tensor, change: Change) -> Tensor:
    return _Changed.apply(x, lambda x: x.view_as(x), change)


def with_values(x: Tensor, change: Change) -> Tensor:
    return _Changed.apply(x, change, lambda gradient: gradient)


def with_gradients(
    honest: Honest, tensors: Tensors, options: Options, changes: Mapping[str, Change]
) -> Tensor:
    changed = list(tensors)
    for name, change in changes.items():
        place = honest.op.arguments.index(name)
        changed[place] = with_gradient(changed[place], change)
    return honest(*changed, **options)

"""Controls with a wrong gradient, or with a wrong output and right gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nsabench import Unsupported
from nsabench.checks.parity import is_seen
from nsabench.implementations.controls._shared import (
    Change,
    Options,
    Tensors,
    rounding_error,
    with_gradients,
    with_values,
)
from nsabench.registry import Honest, control

# Ops whose sizes show whether each query sees a single key.
ONE_KEY = ("sliding_window", "compressed")

_remembered: dict[tuple[object, ...], Tensor] = {}


def _spoil_gradients(
    honest: Honest, tensors: Tensors, options: Options, *changes: Change
) -> Tensor:
    has_one_key = options.get("window") == 1 or ("stride" in options and tensors[1].shape[1] == 1)
    if honest.op.name in ONE_KEY and has_one_key:
        raise Unsupported("a single key has all the weight, so gradients of q and k are zero")
    by_name = dict(zip(honest.op.differentiable, changes, strict=False))
    return _refuse_zeros(with_gradients(honest, tensors, options, by_name))


def _refuse_zeros(out: Tensor) -> Tensor:
    if not bool(out.any()):
        raise Unsupported("nothing is selected, so zero gradients are right")
    return out


@control(caught_by="parity", directions=("backward", "step"))
def zero_gradients(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    return _spoil_gradients(honest, tensors, options, torch.zeros_like, torch.zeros_like)


@control(caught_by="parity", directions=("backward", "step"))
def stale_gradients(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    """Always returns, for its first input, the gradient of its first call with this shape."""
    first = tensors[0]
    key = (honest, first.shape, first.dtype, first.device)
    return _spoil_gradients(honest, tensors, options, lambda d: _remembered.setdefault(key, d))


@control(caught_by="parity", directions=("backward", "step"))
def lost_tail_gradient(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    return _spoil_gradients(honest, tensors, options, _without_last_row)


@control(caught_by="parity", directions=("backward", "step"))
def lost_tail_of_the_last(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    """Zeroes the last nonzero row of its last input's gradient, which causal masks make small."""
    name = honest.op.differentiable[-1]

    def lost(gradient: Tensor) -> Tensor:
        spoiled = _without_last_row(gradient)
        norms = gradient.reshape(-1, gradient.shape[-1]).double().norm(dim=1)
        off = float((gradient - spoiled).double().norm())
        of_typical = off / float(norms.square().mean().sqrt())
        if not is_seen(f"d{name}", of_typical, rounding_error(tensors)):
            raise Unsupported("the lost row is smaller than the rounding error of a typical row")
        return spoiled

    return _refuse_zeros(with_gradients(honest, tensors, options, {name: lost}))


def _without_last_row(result: Tensor) -> Tensor:
    rows = result.reshape(-1, result.shape[-1]).clone()
    rows[rows.any(1).nonzero()[-1:]] = 0
    return rows.view_as(result)


@control(caught_by="parity", directions=("backward", "step"))
def lost_row_in_training(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    """Sets the last nonzero row of its output to zero. Its gradients are right."""
    return with_values(_refuse_zeros(honest(*tensors, **options)), _without_last_row)

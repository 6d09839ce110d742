"""Controls of a backward: wrong gradients, and a wrong output beside right ones."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from nsabench import Unsupported
from nsabench.checks.parity import is_seen
from nsabench.implementations.controls._shared import (
    Change,
    Options,
    Tensors,
    resolved,
    with_gradients,
    with_values,
)
from nsabench.registry import Honest, control

# Ops in which a query may see a single key, which the options tell.
ONE_KEY = ("sliding_window", "compressed")

_remembered: dict[tuple[object, ...], Tensor] = {}


def _spoiled(honest: Honest, tensors: Tensors, options: Options, *changes: Change) -> Tensor:
    """Return the right output, with the gradients of the first differentiable arguments changed.

    Raises `Unsupported` if these gradients are zero whatever is computed.
    """
    _refuse_one_key(honest, tensors, options)
    by_name = dict(zip(honest.op.differentiable, changes, strict=False))
    return _unless_zero(with_gradients(honest, tensors, options, by_name))


def _unless_zero(out: Tensor) -> Tensor:
    if not bool(out.any()):
        raise Unsupported("nothing is selected, so zero gradients are right")
    return out


def _refuse_one_key(honest: Honest, tensors: Tensors, options: Options) -> None:
    one = options.get("window") == 1 or ("stride" in options and tensors[1].shape[1] == 1)
    if honest.op.name in ONE_KEY and one:
        raise Unsupported("one key has all the weight, whatever q and k are")


@control(caught_by="parity", directions=("backward", "step"))
def zero_gradients(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    """The first two gradients are zero: of an attention, a backward that mirrors key 0 alone."""
    return _spoiled(honest, tensors, options, torch.zeros_like, torch.zeros_like)


@control(caught_by="parity", directions=("backward", "step"))
def stale_gradients(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    """Returns the first gradient it ever made of this shape."""
    first = tensors[0]
    key = (honest, first.shape, first.dtype, first.device)
    return _spoiled(honest, tensors, options, lambda d: _remembered.setdefault(key, d))


@control(caught_by="parity", directions=("backward", "step"))
def gradients_of_exp2(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    """The first two gradients are 1/log(2) too large, as if exp2 were differentiated as exp."""

    def larger(gradient: Tensor) -> Tensor:
        return gradient / math.log(2)

    return _spoiled(honest, tensors, options, larger, larger)


@control(caught_by="parity", directions=("backward", "step"))
def lost_tail_gradient(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    """The first gradient lacks its last row that is not zero."""
    return _spoiled(honest, tensors, options, _without_last_row)


@control(caught_by="parity", directions=("backward", "step"))
def lost_tail_of_the_last(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    """The last gradient lacks its last row that is not zero: of an attention dv of the last key,
    which under a causal mask is small beside the others."""
    name = honest.op.differentiable[-1]

    def lost(gradient: Tensor) -> Tensor:
        spoiled = _without_last_row(gradient)
        norms = gradient.reshape(-1, gradient.shape[-1]).double().norm(dim=1)
        off = float((gradient - spoiled).double().norm())
        of_typical = off / float(norms.square().mean().sqrt())
        if not is_seen(f"d{name}", of_typical, resolved(tensors)):
            raise Unsupported("what is lost is no more than rounding of a typical row")
        return spoiled

    return _unless_zero(with_gradients(honest, tensors, options, {name: lost}))


def _without_last_row(result: Tensor) -> Tensor:
    """Set its last row that is not zero to zero."""
    rows = result.reshape(-1, result.shape[-1]).clone()
    rows[rows.any(1).nonzero()[-1:]] = 0
    return rows.view_as(result)


@control(caught_by="parity", directions=("backward", "step"))
def lost_row_in_training(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    """Its gradients are right, and its output lacks the last row that is not zero."""
    return with_values(_unless_zero(honest(*tensors, **options)), _without_last_row)


@control(caught_by="parity", directions=("backward", "step"))
def detached_keys(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    """Has no gradient of its second differentiable argument."""
    if len(honest.op.differentiable) < 2:
        raise Unsupported("it differentiates by one argument")
    _refuse_one_key(honest, tensors, options)
    place = honest.op.arguments.index(honest.op.differentiable[1])
    others = (*tensors[:place], tensors[place].detach(), *tensors[place + 1 :])
    return _unless_zero(honest(*others, **options))

"""Controls whose output is right and whose gradients are not."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nsabench import Unsupported, implementation, ops
from nsabench.implementations.controls.honest import HONEST, Attention
from nsabench.model.vocabulary import Direction

Change = Callable[[Tensor], Tensor]


class _Spoil(torch.autograd.Function):  # type: ignore[misc]
    """Hands a tensor on as it is, and its gradient back changed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, change: Change) -> Tensor:
        ctx.change = change
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.change(grads[0]), None


def _spoil(x: Tensor, change: Change) -> Tensor:
    spoiled: Tensor = _Spoil.apply(x, change)
    return spoiled


def _register(op: str, honest: Attention) -> None:
    remembered: dict[tuple[object, ...], Tensor] = {}

    def control(name: str) -> Callable[[Attention], Attention]:
        def register(call: Attention) -> Attention:
            def unless_zero(*tensors: Tensor, **options: Any) -> Tensor:
                if _one_key(tensors[1], options):
                    raise Unsupported("one key has all the weight, whatever q and k are")
                out = call(*tensors, **options)
                if not bool(out.any()):
                    raise Unsupported("nothing is selected, so zero gradients are right")
                return out

            decorate = implementation(
                op=op,
                name=name,
                role="control",
                devices=("cuda", "cpu"),
                caught_by="parity",
                directions=("backward",),
            )
            return decorate(unless_zero)

        return register

    @control("zero_gradients")
    def zero_gradients(q: Tensor, k: Tensor, *rest: Tensor, **options: Any) -> Tensor:
        """dq = dk = 0: a backward that mirrors attention to key 0 alone."""
        zeros = torch.zeros_like
        return honest(_spoil(q, zeros), _spoil(k, zeros), *rest, **options)

    @control("stale_gradients")
    def stale_gradients(q: Tensor, *rest: Tensor, **options: Any) -> Tensor:
        """Returns the first dq it ever made of this shape."""
        key = (q.shape, q.dtype, q.device)
        return honest(_spoil(q, lambda dq: remembered.setdefault(key, dq)), *rest, **options)

    @control("gradients_of_exp2")
    def gradients_of_exp2(q: Tensor, k: Tensor, *rest: Tensor, **options: Any) -> Tensor:
        """Differentiates exp2 as if it were exp: dq and dk are 1/log(2) too large."""

        def larger(gradient: Tensor) -> Tensor:
            return gradient / math.log(2)

        return honest(_spoil(q, larger), _spoil(k, larger), *rest, **options)

    @control("detached_keys")
    def detached_keys(q: Tensor, k: Tensor, *rest: Tensor, **options: Any) -> Tensor:
        """Has no gradient of the keys."""
        return honest(q, k.detach(), *rest, **options)


def _one_key(k: Tensor, options: dict[str, Any]) -> bool:
    return options.get("window") == 1 or ("stride" in options and k.shape[1] == 1)


for _op, (_honest, _) in HONEST.items():
    if Direction.BACKWARD in ops.get(_op).directions:
        _register(_op, _honest)

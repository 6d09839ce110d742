"""The right backward that all families share, by the formulas of FlashAttention (arXiv 2205.14135).

A mutant of the backward overrides one of the `Backward` steps; its forward is right.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from tests.checker.mutants.softmax import Steps


class Backward(Steps):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, seen: Tensor, scale: float) -> Tensor:
        out: Tensor = _Attention.apply(q.float(), k.float(), v.float(), seen, scale, self)
        return out

    def delta(self, do: Tensor, out: Tensor) -> Tensor:
        return (do * out).sum(-1, keepdim=True)

    def delta_for_keys(self, do: Tensor, out: Tensor) -> Tensor:
        return self.delta(do, out)

    def dq(self, ds: Tensor, k: Tensor, scale: float) -> Tensor:
        return (ds @ k) * scale

    def dk(self, ds: Tensor, q: Tensor, scale: float) -> Tensor:
        return self.over_queries(ds, q) * scale

    def dv(self, p: Tensor, do: Tensor) -> Tensor:
        return self.over_queries(p, do)

    def over_queries(self, weights: Tensor, x: Tensor) -> Tensor:
        """The sum over the rows, which are the queries of each head of a group."""
        return weights.mT @ x


class _Attention(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, seen: Tensor, scale: float, steps: Backward
    ) -> Tensor:
        scores = (q @ k.mT * scale).masked_fill(~seen, -math.inf)
        p = torch.softmax(scores, -1).nan_to_num(0.0)
        out = p @ v
        ctx.save_for_backward(q, k, v, p, out)
        ctx.scale, ctx.steps = scale, steps
        return out

    @staticmethod
    def backward(ctx: Any, do: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, p, out = ctx.saved_tensors
        steps: Backward = ctx.steps
        dp = do @ v.mT
        dq = steps.dq(p * (dp - steps.delta(do, out)), k, ctx.scale)
        dk = steps.dk(p * (dp - steps.delta_for_keys(do, out)), q, ctx.scale)
        return dq, dk, steps.dv(p, do), None, None, None


RIGHT = Backward()


class NoDelta(Backward):
    def delta(self, do: Tensor, out: Tensor) -> Tensor:
        return torch.zeros_like(do[..., :1])


class NoDeltaForKeys(Backward):
    def delta_for_keys(self, do: Tensor, out: Tensor) -> Tensor:
        return torch.zeros_like(do[..., :1])


class QueriesUnscaled(Backward):
    def dq(self, ds: Tensor, k: Tensor, scale: float) -> Tensor:
        return ds @ k


class KeysScaledTwice(Backward):
    def dk(self, ds: Tensor, q: Tensor, scale: float) -> Tensor:
        return super().dk(ds, q, scale) * scale


class Exp2AsExp(Backward):
    """The gradient of exp2(s log2(e)) with the factor log2(e) but without the factor log(2)."""

    def dq(self, ds: Tensor, k: Tensor, scale: float) -> Tensor:
        return super().dq(ds, k, scale) * math.log2(math.e)


class WrongSign(Backward):
    def dk(self, ds: Tensor, q: Tensor, scale: float) -> Tensor:
        return -super().dk(ds, q, scale)


class CountedTwice(Backward):
    def dv(self, p: Tensor, do: Tensor) -> Tensor:
        return super().dv(p, do) * 2


class KeysInBfloat16(Backward):
    """Summed a head at a time, a tile of queries at a time."""

    tile = 64

    def __init__(self, group: int) -> None:
        self.group = group

    def over_queries(self, weights: Tensor, x: Tensor) -> Tensor:
        total = torch.zeros_like(weights.mT @ x)
        for w, rows in zip(weights.chunk(self.group, -2), x.chunk(self.group, -2), strict=True):
            for some, of in zip(w.split(self.tile, -2), rows.split(self.tile, -2), strict=True):
                total = (total + some.mT @ of).bfloat16().float()
        return total


class SomeHeads(Backward):
    """Sum only the rows of some heads of a group. Rows are ordered by head, then by query."""

    def __init__(self, group: int, heads: slice) -> None:
        self.group, self.heads = group, heads

    def over_queries(self, weights: Tensor, x: Tensor) -> Tensor:
        some = [t.unflatten(-2, (self.group, -1))[..., self.heads, :, :] for t in (weights, x)]
        w, rows = (t.flatten(-3, -2) for t in some)
        return w.mT @ rows


class SomeQueries(Backward):
    """Only those before `end` of each head of a group are summed."""

    def __init__(self, group: int, end: int) -> None:
        self.group, self.end = group, end

    def over_queries(self, weights: Tensor, x: Tensor) -> Tensor:
        some = [t.unflatten(-2, (self.group, -1))[..., : self.end, :] for t in (weights, x)]
        w, rows = (t.flatten(-3, -2) for t in some)
        return w.mT @ rows

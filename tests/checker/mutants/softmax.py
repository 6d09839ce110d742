"""The right kernel that all families share: softmax a tile of keys at a time, in float32.

A mutant of the softmax itself overrides one of the `Steps`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


class Steps:
    """The steps that a kernel applies to each tile of keys."""

    tile = 64

    def edges(self, lo: Tensor, hi: Tensor) -> tuple[Tensor, Tensor]:
        """Return the first key of each query, and the one behind the last."""
        return lo, hi

    def score(self, q: Tensor, k: Tensor, scale: float) -> Tensor:
        return (q @ k.mT) * scale

    def mask(self, scores: Tensor, seen: Tensor) -> Tensor:
        return scores.masked_fill(~seen, -math.inf)

    def top(self, before: Tensor, scores: Tensor) -> Tensor:
        return torch.maximum(before, scores.amax(-1, keepdim=True))

    def exp(self, x: Tensor) -> Tensor:
        return torch.exp(x)

    def weights(self, p: Tensor) -> Tensor:
        """As they are multiplied with the values."""
        return p

    def values(self, v: Tensor, start: int) -> Tensor:
        return v[..., start : start + self.tile, :]

    def rescale_output(self, output: Tensor, factor: Tensor) -> Tensor:
        return output * factor

    def rescale_sum(self, total: Tensor, factor: Tensor) -> Tensor:
        return total * factor

    def add(self, output: Tensor, part: Tensor) -> Tensor:
        return output + part

    def divide(self, output: Tensor, total: Tensor) -> Tensor:
        return torch.where(total == 0, 0.0, output / total)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, seen: Tensor, scale: float) -> Tensor:
        output, total, _ = partial(q, k, v, seen, scale, self)
        return self.divide(output, total)


RIGHT = Steps()


def attend(
    q: Tensor, k: Tensor, v: Tensor, seen: Tensor, scale: float, steps: Steps = RIGHT
) -> Tensor:
    """float32 [..., M, Dv] of q [..., M, D], k [..., L, D], v [..., L, Dv], seen [..., M, L]."""
    return steps.attend(q, k, v, seen, scale)


def partial(
    q: Tensor, k: Tensor, v: Tensor, seen: Tensor, scale: float, steps: Steps = RIGHT
) -> tuple[Tensor, Tensor, Tensor]:
    """The sums of weighted values and of weights, and the maximum that the weights are under."""
    q, k, v = q.float(), k.float(), v.float()
    top = q.new_full((*q.shape[:-1], 1), -math.inf)
    total, output = torch.zeros_like(top), q.new_zeros(*q.shape[:-1], v.shape[-1])
    for start in range(0, k.shape[-2], steps.tile):
        keys = slice(start, start + steps.tile)
        scores = steps.mask(steps.score(q, k[..., keys, :], scale), seen[..., keys])
        higher = steps.top(top, scores)
        unit = higher.masked_fill(higher == -math.inf, 0.0)
        factor, p = steps.exp(top - unit), steps.exp(scores - unit)
        total = steps.rescale_sum(total, factor) + p.sum(-1, keepdim=True)
        part = steps.weights(p) @ steps.values(v, start)
        output = steps.add(steps.rescale_output(output, factor), part)
        top = higher
    return output, total, top


class ScoresUnscaled(Steps):
    def score(self, q: Tensor, k: Tensor, scale: float) -> Tensor:
        return q @ k.mT


class ScaledTwice(Steps):
    def score(self, q: Tensor, k: Tensor, scale: float) -> Tensor:
        return ((q * scale) @ k.mT) * scale


class Exp2WithoutLog2e(Steps):
    def exp(self, x: Tensor) -> Tensor:
        return torch.exp2(x)


class ExpWithLog2e(Steps):
    def score(self, q: Tensor, k: Tensor, scale: float) -> Tensor:
        return (q @ k.mT) * (scale * math.log2(math.e))


class OutputNotRescaled(Steps):
    def rescale_output(self, output: Tensor, factor: Tensor) -> Tensor:
        return output


class SumNotRescaled(Steps):
    def rescale_sum(self, total: Tensor, factor: Tensor) -> Tensor:
        return total


class NotDivided(Steps):
    def divide(self, output: Tensor, total: Tensor) -> Tensor:
        return output


class NoMaximum(Steps):
    def top(self, before: Tensor, scores: Tensor) -> Tensor:
        return torch.zeros_like(before)

    def rescale_sum(self, total: Tensor, factor: Tensor) -> Tensor:
        return total

    def rescale_output(self, output: Tensor, factor: Tensor) -> Tensor:
        return output


class Bfloat16Weights(Steps):
    def weights(self, p: Tensor) -> Tensor:
        return p.bfloat16().float()


class Float16Accumulator(Steps):
    def add(self, output: Tensor, part: Tensor) -> Tensor:
        return (output + part).half().float()


class Bfloat16Accumulator(Steps):
    def add(self, output: Tensor, part: Tensor) -> Tensor:
        return (output + part).bfloat16().float()


class MaskedScoresAreZero(Steps):
    def mask(self, scores: Tensor, seen: Tensor) -> Tensor:
        """In a tile of which some keys are seen; the others are skipped."""
        some = seen.any(-1, keepdim=True)
        return super().mask(scores.masked_fill(~seen, 0.0), some.expand(scores.shape))


class ValuesOfTheTileBefore(Steps):
    """The copy of a tile had not arrived: the race that a missing barrier is, made visible."""

    def values(self, v: Tensor, start: int) -> Tensor:
        right = super().values(v, start)
        stale = super().values(v, max(start - self.tile, 0))
        return stale if stale.shape == right.shape else right


class ValuesOfTheNextKey(Steps):
    def values(self, v: Tensor, start: int) -> Tensor:
        return super().values(v.roll(-1, -2), start)

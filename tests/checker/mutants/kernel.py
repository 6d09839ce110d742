"""The right kernel that most ops share: attention a tile of keys at a time, in float32.

A mutant of the softmax or of the backward changes one of its steps.
"""

import math

import torch


class Steps:
    """The steps that a kernel applies to each tile of keys."""

    tile = 64

    def changed(self, **steps):
        """Return these steps with some replaced by `steps`, which are functions of (self, ...)."""
        return type("Changed", (type(self),), steps)()

    def edges(self, lo, hi):
        """Return the first key of each query, and the end after its last key."""
        return lo, hi

    def score(self, q, k, scale):
        return (q @ k.mT) * scale

    def mask(self, scores, times):
        """times: how often a query's selection holds each key."""
        return scores.masked_fill(times == 0, -math.inf)

    def top(self, before, scores):
        return torch.maximum(before, scores.amax(-1, keepdim=True))

    def exp(self, x):
        return torch.exp(x)

    def weights(self, p):
        """Return the weights as they are multiplied with the values."""
        return p

    def values(self, v, start):
        return v[..., start : start + self.tile, :]

    def rescale_output(self, output, factor):
        return output * factor

    def rescale_sum(self, total, factor):
        return total * factor

    def add(self, output, part):
        return output + part

    def divide(self, output, total):
        return torch.where(total == 0, 0.0, output / total)

    def attend(self, q, k, v, times, scale):
        """Return float32 [..., M, Dv] of q [..., M, D], k [..., L, D], v [..., L, Dv], times [...,
        L]."""
        q, k, v = q.float(), k.float(), v.float()
        top = q.new_full((*q.shape[:-1], 1), -math.inf)
        total, output = torch.zeros_like(top), q.new_zeros(*q.shape[:-1], v.shape[-1])
        for start in range(0, k.shape[-2], self.tile):
            keys = slice(start, start + self.tile)
            scores = self.mask(self.score(q, k[..., keys, :], scale), times[..., keys])
            higher = self.top(top, scores)
            unit = higher.masked_fill(higher == -math.inf, 0.0)
            factor, p = self.exp(top - unit), self.exp(scores - unit)
            total = self.rescale_sum(total, factor) + p.sum(-1, keepdim=True)
            part = self.weights(p) @ self.values(v, start)
            output = self.add(self.rescale_output(output, factor), part)
            top = higher
        return self.divide(output, total)


RIGHT = Steps()


def as_it_is(self, x, *_):
    return x


def masked_scores_zero(self, scores, times):
    """Set masked scores to 0 in rows of a tile with a selected key. Other rows stay masked."""
    skipped = (times == 0).all(-1, keepdim=True).expand(scores.shape)
    return scores.masked_fill(times == 0, 0.0).masked_fill(skipped, -math.inf)


def stale_tile(self, v, start):
    """Return the tile before, as if a missing barrier let the kernel read too early."""
    right = Steps.values(self, v, start)
    stale = Steps.values(self, v, max(start - self.tile, 0))
    return stale if stale.shape == right.shape else right


# Wrong steps of mutants.
BFLOAT16_WEIGHTS = RIGHT.changed(weights=lambda self, p: p.bfloat16().float())
EXP2_WITHOUT_LOG2E = RIGHT.changed(exp=lambda self, x: torch.exp2(x))
EXP_WITH_LOG2E = RIGHT.changed(score=lambda self, q, k, s: (q @ k.mT) * (s * math.log2(math.e)))
MASKED_SCORES_ZERO = RIGHT.changed(mask=masked_scores_zero)
STALE_TILES = RIGHT.changed(values=stale_tile)
OVERLAPS_COUNTED = RIGHT.changed(mask=lambda self, scores, times: scores + times.log())
SCALED_TWICE = RIGHT.changed(score=lambda self, q, k, scale: ((q * scale) @ k.mT) * scale)
SUM_NOT_RESCALED = RIGHT.changed(rescale_sum=as_it_is)


class Backward(Steps):
    """The right backward, by the formulas of FlashAttention (arXiv 2205.14135)."""

    def attend(self, q, k, v, times, scale):
        return _Attention.apply(q.float(), k.float(), v.float(), times, scale, self)

    def delta(self, do, out):
        return (do * out).sum(-1, keepdim=True)

    def delta_for_keys(self, do, out):
        return self.delta(do, out)

    def dq(self, ds, k, scale):
        return (ds @ k) * scale

    def dk(self, ds, q, scale):
        return self.over_queries(ds, q) * scale

    def dv(self, p, do):
        return self.over_queries(p, do)

    def over_queries(self, weights, x):
        """Return the sum over the rows, which are the queries of each head of a group."""
        return weights.mT @ x


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, times, scale, steps):
        scores = (q @ k.mT * scale).masked_fill(times == 0, -math.inf)
        p = torch.softmax(scores, -1).nan_to_num(0.0)
        out = p @ v
        ctx.save_for_backward(q, k, v, p, out)
        ctx.scale, ctx.steps = scale, steps
        return out

    @staticmethod
    def backward(ctx, do):
        q, k, v, p, out = ctx.saved_tensors
        steps, scale = ctx.steps, ctx.scale
        dp = do @ v.mT
        dq = steps.dq(p * (dp - steps.delta(do, out)), k, scale)
        dk = steps.dk(p * (dp - steps.delta_for_keys(do, out)), q, scale)
        return dq, dk, steps.dv(p, do), None, None, None


RIGHT_BACKWARD = Backward()


def sum_in_bfloat16(group, tile=64):
    """Return a step that sums over queries in bfloat16, head by head and tile by tile."""

    def over_queries(self, weights, x):
        total = torch.zeros_like(weights.mT @ x)
        for w, rows in zip(weights.chunk(group, -2), x.chunk(group, -2), strict=True):
            for some, of in zip(w.split(tile, -2), rows.split(tile, -2), strict=True):
                total = (total + some.mT @ of).bfloat16().float()
        return total

    return over_queries


def sum_of_some(group, heads=slice(None), queries=slice(None)):
    """Return a step that sums over some heads of a group and some queries. Rows are ordered by
    head."""

    def over_queries(self, weights, x):
        some = [t.unflatten(-2, (group, -1))[..., heads, queries, :] for t in (weights, x)]
        w, rows = (t.flatten(-3, -2) for t in some)
        return w.mT @ rows

    return over_queries

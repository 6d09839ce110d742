"""Mistakes in which keys of its span a row attends to (op selection_rows).

All are weighted sums of the same exponentials, so these are computed once: in row n and head h,
key l has the weight exp(scale q.k - max), and a mistake leaves keys out, or counts them twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from nsabench.diagnosis.evidence import Evidence, Hypothesis

TILES = (16, 32, 64, 128, 256)
# Products of weight and value that the search over every number of keys may hold at a time.
SEARCH_ELEMENTS = 1 << 24


def hypotheses(evidence: Evidence) -> Iterator[Hypothesis]:
    keys = _Keys(evidence)
    yield from _prefixes(keys)
    yield from _causal(keys)
    yield from _tiles(keys)
    yield from _softmax(keys)
    yield from _accumulation(keys)


class _Keys:
    """The softmax weights of the evidence, not yet divided by their sum: [N,H,L]."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        tensors = evidence.inputs.tensors
        self.v = tensors["v"].double()
        scale = evidence.inputs.options["sm_scale"]
        self.scores = tensors["q"].double() @ tensors["k"].double().mT * scale
        self.top = self.scores.amax(-1, keepdim=True)
        self.weights = torch.exp(self.scores - self.top)
        self.length = self.weights.shape[-1]
        self.heads = self.weights.shape[-2]

    def attend(self, counted: Tensor) -> Tensor:
        """The output if each key counts `counted` times (any shape that broadcasts to [N,H,L])."""
        weights = self.weights * counted
        return weights @ self.v / weights.sum(-1, keepdim=True)

    def between(self, start: int, stop: int) -> Tensor:
        """Ones from key `start` to key `stop`, else zeros."""
        counted = torch.zeros(self.length, dtype=torch.float64, device=self.v.device)
        counted[start:stop] = 1
        return counted


def _prefixes(keys: _Keys) -> Iterator[Hypothesis]:
    """Of all numbers of first and of last keys, the one that comes nearest."""
    length = keys.length
    if length == 1:
        return
    first = _nearest_prefix(keys, reverse=False)
    if first < length:
        text = f"attends to the first {first} of {length} keys"
        text = "attends to key 0 only" if first == 1 else text
        yield Hypothesis(text, lambda: keys.attend(keys.between(0, first)))
    last = _nearest_prefix(keys, reverse=True)
    if last < length:
        text = f"attends to the last {last} of {length} keys"
        text = f"attends to the last key, {length - 1}, only" if last == 1 else text
        yield Hypothesis(text, lambda: keys.attend(keys.between(length - last, length)))


def _nearest_prefix(keys: _Keys, *, reverse: bool) -> int:
    weights, v = (keys.weights.flip(-1), keys.v.flip(1)) if reverse else (keys.weights, keys.v)
    output = keys.evidence.output
    # One head of a few rows tells prefixes apart; every head of every row need not be searched.
    rows = max(1, SEARCH_ELEMENTS // (keys.length * v.shape[-1]))
    weights, v, output = weights[:rows, 0, :, None], v[:rows], output[:rows, None, 0]
    guesses = (weights * v).cumsum(1) / weights.cumsum(1)
    return int((guesses - output).abs().mean((0, 2)).argmin()) + 1


def _causal(keys: _Keys) -> Iterator[Hypothesis]:
    """A causal mask over the heads, taken for queries."""
    if keys.heads == 1 or keys.length == 1:
        return
    full = torch.ones(keys.heads, keys.length, dtype=torch.float64, device=keys.v.device)
    yield Hypothesis(
        "applies a causal mask, aligned top-left, over the heads",
        lambda: keys.attend(full.tril()),
    )
    if keys.length >= keys.heads:
        yield Hypothesis(
            "applies a causal mask, aligned bottom-right, over the heads",
            lambda: keys.attend(full.tril(keys.length - keys.heads)),
        )


def _tiles(keys: _Keys) -> Iterator[Hypothesis]:
    length = keys.length
    for padded in sorted({-length % tile for tile in TILES} - {0}):
        yield Hypothesis(
            f"counts {padded} zero keys of padding after the {length}",
            partial(_pad, keys, padded),
        )
    for tile in TILES:
        again = (length - tile, length - length % tile)
        if length > tile and length % tile:
            twice = 1 + keys.between(*again)
            yield Hypothesis(
                f"counts keys {again[0]} to {again[1] - 1} twice: two tiles of {tile} overlap",
                partial(keys.attend, twice),
            )
    yield Hypothesis("counts key 0 twice", lambda: keys.attend(1 + keys.between(0, 1)))


def _pad(keys: _Keys, count: int) -> Tensor:
    """A zero key scores 0 and adds a zero value, so it only makes the sum of weights larger."""
    total = keys.weights.sum(-1, keepdim=True) + count * torch.exp(-keys.top)
    return keys.weights @ keys.v / total


def _softmax(keys: _Keys) -> Iterator[Hypothesis]:
    yield Hypothesis("does not divide by the sum of the weights", lambda: keys.weights @ keys.v)
    yield Hypothesis("takes no softmax of the scores", lambda: keys.scores @ keys.v)
    mean = keys.v.mean(1, keepdim=True)
    yield Hypothesis("is the plain mean of V", lambda: mean.expand_as(keys.evidence.oracle))


def _accumulation(keys: _Keys) -> Iterator[Hypothesis]:
    for tile in TILES[:4]:
        if keys.length > tile:
            for name in ("bfloat16", "float16"):
                yield Hypothesis(
                    f"accumulates in {name}, a tile of {tile} keys at a time",
                    partial(_accumulate, keys, tile, getattr(torch, name)),
                )


def _accumulate(keys: _Keys, tile: int, dtype: torch.dtype) -> Tensor:
    shares = keys.weights / keys.weights.sum(-1, keepdim=True)
    total = torch.zeros_like(keys.evidence.oracle)
    for part, v in zip(shares.split(tile, -1), keys.v.split(tile, 1), strict=True):
        total = (total + part @ v).to(dtype).double()
    return total

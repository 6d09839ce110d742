"""Mistakes in which keys of its span a row attends to (op selection_rows): all rows have L keys."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from nsabench.checker.diagnosis import keys as of_keys
from nsabench.checker.diagnosis.evidence import Evidence, Hypothesis
from nsabench.checker.diagnosis.keys import TILES, Keys


def hypotheses(evidence: Evidence) -> Iterator[Hypothesis]:
    k, v = evidence.inputs.tensors["k"], evidence.inputs.tensors["v"]
    keys = Keys(evidence, k, v, torch.full(k.shape[:1], k.shape[1], device=k.device))
    yield from of_keys.prefixes(keys)
    yield from _causal(keys)
    yield from _tiles(keys)
    yield from of_keys.softmax(keys)
    yield from of_keys.values(keys)
    yield from of_keys.precision(keys)


def _causal(keys: Keys) -> Iterator[Hypothesis]:
    """A causal mask applies to the heads, as if they were queries."""
    if keys.heads == 1 or keys.length == 1:
        return
    full = torch.ones(keys.heads, keys.length, dtype=torch.float64, device=keys.v.device)
    text = "applies a causal mask, aligned {}, over the heads"
    yield Hypothesis(text.format("top-left"), partial(keys.attend, full.tril()))
    if keys.length >= keys.heads:
        aligned = full.tril(keys.length - keys.heads)
        yield Hypothesis(text.format("bottom-right"), partial(keys.attend, aligned))


def _tiles(keys: Keys) -> Iterator[Hypothesis]:
    length = keys.length
    for padded in sorted({-length % tile for tile in TILES} - {0}):
        text = f"counts {padded} zero keys of padding after the {length}"
        yield Hypothesis(text, partial(of_keys.padded, keys, padded))
    for tile in TILES:
        overlap = (length - tile, length - length % tile)
        if length > tile and length % tile:
            which = f"{overlap[0]} to {overlap[1] - 1}"
            text = f"counts keys {which} twice: two tiles of {tile} overlap"
            yield Hypothesis(text, partial(keys.attend, 1 + keys.between(*overlap)))
    yield Hypothesis("counts key 0 twice", lambda: keys.attend(1 + keys.between(0, 1)))

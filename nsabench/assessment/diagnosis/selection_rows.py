"""Mistakes in which keys of its span a row attends to (op selection_rows): all rows have L keys."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from nsabench.assessment.diagnosis import keys as of_keys
from nsabench.assessment.diagnosis.evidence import Evidence, Hypothesis
from nsabench.assessment.diagnosis.keys import TILES, Keys


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


def _tiles(keys: Keys) -> Iterator[Hypothesis]:
    length = keys.length
    for padded in sorted({-length % tile for tile in TILES} - {0}):
        yield Hypothesis(
            f"counts {padded} zero keys of padding after the {length}",
            partial(of_keys.padded, keys, padded),
        )
    for tile in TILES:
        overlap = (length - tile, length - length % tile)
        if length > tile and length % tile:
            twice = 1 + keys.between(*overlap)
            yield Hypothesis(
                f"counts keys {overlap[0]} to {overlap[1] - 1} twice: two tiles of {tile} overlap",
                partial(keys.attend, twice),
            )
    yield Hypothesis("counts key 0 twice", lambda: keys.attend(1 + keys.between(0, 1)))

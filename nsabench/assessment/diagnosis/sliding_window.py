"""Mistakes in which keys a window holds (op sliding_window)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from nsabench.assessment.diagnosis import banded, sharing
from nsabench.assessment.diagnosis.banded import lead
from nsabench.assessment.diagnosis.coordinates import coordinates
from nsabench.assessment.diagnosis.evidence import Evidence, Hypothesis
from nsabench.assessment.diagnosis.keys import TILES
from nsabench.assessment.diagnosis.selected import Selection, spans
from nsabench.assessment.diagnosis.sequences import moved_starts, sequences
from nsabench.ops import Inputs
from nsabench.ops.sliding_window import OP

Gradients = Callable[[Tensor], dict[str, Tensor]]

__all__ = ["hypotheses", "lead", "select", "variants"]


def select(inputs: Inputs, rows: Tensor) -> Selection:
    t = inputs.tensors
    _, token, _ = coordinates(rows, lead(inputs))
    start, _ = sequences(t["q"].shape[1], t.get("cu_seqlens"), rows.device)
    lo = torch.maximum(start[token], token + 1 - int(inputs.options["window"]))
    return banded.select(inputs, rows, lo, token + 1)


def hypotheses(evidence: Evidence) -> Iterator[Hypothesis]:
    t = evidence.full.tensors
    window, cu = int(evidence.full.options["window"]), t.get("cu_seqlens")
    _, token, _ = coordinates(evidence.rows, lead(evidence.full))
    tokens = t["k"].shape[1]
    start = sequences(tokens, cu, token.device)[0][token]
    hi = token + 1
    lo = torch.maximum(start, hi - window)

    def of(text: str, first: Tensor, end: Tensor) -> Hypothesis:
        return sharing.selecting(evidence, text, spans(first, end, tokens))

    for other in (window - 1, window + 1):
        text = f"uses a window of {other} keys instead of {window}"
        yield of(text, torch.maximum(start, hi - other), hi)
    yield of("attends to all keys up to the query, in no window", start, hi)
    yield of("leaves out the query's own key", lo, hi - 1)
    yield of("attends to one key after the query", lo, hi + 1)
    yield of("attends as far after the query as before it", lo, hi + window - 1)
    yield of("leaves out key 0", lo.clamp(min=1), hi)
    if cu is not None:
        yield of("takes the packed sequences for one", hi - window, hi)
        for text, (begins, _) in moved_starts(tokens, cu):
            yield of(text, torch.maximum(begins[token], hi - window), hi)
    for tile in TILES:
        down, up = lo // tile * tile, (lo + tile - 1) // tile * tile
        whole = (hi + tile - 1) // tile * tile
        yield of(f"attends up to the end of its tile of {tile}, past the query", lo, whole)
        yield of(f"attends from the begin of a tile of {tile} on, before the window", down, hi)
        yield of(
            f"attends only from the first of the tiles of {tile} that the window holds", up, hi
        )
    yield from sharing.dealt(evidence)
    yield from sharing.hypotheses(evidence)


def variants(inputs: Inputs) -> Iterator[tuple[str, Gradients]]:
    """What a backward of another window would give."""
    window = int(inputs.options["window"])
    for other in (window - 1, window + 1):
        if other:
            options = {**inputs.options, "window": other}
            text = f"uses a window of {other} keys instead of {window}"
            yield text, partial(OP.gradients, Inputs(inputs.tensors, options))
    every = Inputs(inputs.tensors, {**inputs.options, "window": inputs.tensors["q"].shape[1]})
    yield "attends to all keys up to the query, in no window", partial(OP.gradients, every)
    if "cu_seqlens" in inputs.tensors:
        alone = {name: t for name, t in inputs.tensors.items() if name != "cu_seqlens"}
        one = Inputs(alone, inputs.options)
        yield "takes the packed sequences for one", partial(OP.gradients, one)

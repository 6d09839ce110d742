"""Mistakes in which keys a query sees (op causal_attention)."""

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
from nsabench.ops.causal_attention import OP

Gradients = Callable[[Tensor], dict[str, Tensor]]

__all__ = ["hypotheses", "lead", "select", "variants"]


def select(inputs: Inputs, rows: Tensor) -> Selection:
    t = inputs.tensors
    _, token, _ = coordinates(rows, lead(inputs))
    start, _ = sequences(t["q"].shape[1], t.get("cu_seqlens"), rows.device)
    return banded.select(inputs, rows, start[token], token + 1)


def hypotheses(evidence: Evidence) -> Iterator[Hypothesis]:
    t = evidence.full.tensors
    cu, tokens = t.get("cu_seqlens"), t["k"].shape[1]
    _, token, _ = coordinates(evidence.rows, lead(evidence.full))
    starts, ends = sequences(tokens, cu, token.device)
    start, end, own = starts[token], ends[token], token + 1

    def of(text: str, first: Tensor, behind: Tensor) -> Hypothesis:
        return sharing.selecting(evidence, text, spans(first, behind, tokens))

    yield of("attends to the whole sequence, without a causal mask", start, end)
    yield of("leaves out the query's own key", start, own - 1)
    yield of("attends to one key after the query", start, own + 1)
    yield of("leaves out the first key", start + 1, own)
    if cu is not None:
        yield of("takes the packed sequences for one", torch.zeros_like(start), own)
        for text, (begins, _) in moved_starts(tokens, cu):
            yield of(text, begins[token], own)
    for tile in TILES:
        whole = torch.minimum((own + tile - 1) // tile * tile, end)
        yield of(f"attends up to the end of its tile of {tile}, past the query", start, whole)
    yield from sharing.dealt(evidence)
    yield from sharing.hypotheses(evidence)


def variants(inputs: Inputs) -> Iterator[tuple[str, Gradients]]:
    """What a backward of other sequences would give."""
    if "cu_seqlens" in inputs.tensors:
        alone = {name: t for name, t in inputs.tensors.items() if name != "cu_seqlens"}
        one = Inputs(alone, {**inputs.options, "max_seqlen": alone["q"].shape[1]})
        yield "takes the packed sequences for one", partial(OP.gradients, one)

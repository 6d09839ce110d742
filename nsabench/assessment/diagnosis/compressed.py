"""Mistakes in which compressed keys are complete (op compressed)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from nsabench.assessment.diagnosis import banded, sharing
from nsabench.assessment.diagnosis.banded import lead
from nsabench.assessment.diagnosis.coordinates import coordinates
from nsabench.assessment.diagnosis.evidence import Evidence, Hypothesis
from nsabench.assessment.diagnosis.selected import Selection, spans
from nsabench.assessment.diagnosis.sequences import sequences
from nsabench.ops import Inputs
from nsabench.ops.compressed import OP

Gradients = Callable[[Tensor], dict[str, Tensor]]

__all__ = ["hypotheses", "lead", "select", "variants"]


def select(inputs: Inputs, rows: Tensor) -> Selection:
    _, position, first = _places(inputs, rows)
    block, stride = (int(inputs.options[name]) for name in ("block", "stride"))
    return banded.select(inputs, rows, first, first + _complete(position, block, stride))


def _places(inputs: Inputs, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of each row its token, that token's place in its sequence, and the first of its keys."""
    t = inputs.tensors
    _, token, _ = coordinates(rows, lead(inputs))
    cu, cu_keys = t.get("cu_seqlens"), t.get("cu_keys")
    start = sequences(t["q"].shape[1], cu, rows.device)[0][token]
    if cu is None or cu_keys is None:
        return token, token, start
    return token, token - start, _of_sequences(cu, cu_keys[:-1])[token]


def _of_sequences(cu: Tensor, value: Tensor) -> Tensor:
    """What is said of each sequence, of each token."""
    return torch.repeat_interleave(value.long(), cu.diff().long())


def _complete(position: Tensor, block: int, stride: int) -> Tensor:
    """Compressed keys that are complete when the query at this position is there."""
    seen = torch.div(position + 1 - block, stride, rounding_mode="floor") + 1
    return seen.clamp(min=0)


def hypotheses(evidence: Evidence) -> Iterator[Hypothesis]:
    t = evidence.full.tensors
    block, stride = (int(evidence.full.options[name]) for name in ("block", "stride"))
    token, position, first = _places(evidence.full, evidence.rows)
    keys = t["k"].shape[1]

    def of(text: str, lo: Tensor, count: Tensor | int) -> Hypothesis:
        return sharing.selecting(evidence, text, spans(lo, lo + count, keys))

    for text, other in _other_blocks(evidence.full):
        yield of(text, first, _complete(position, other, stride))
    cu, cu_keys = t.get("cu_seqlens"), t.get("cu_keys")
    if cu is None or cu_keys is None:
        yield of("attends to all compressed keys, whatever the query's place", first, keys)
    else:
        count = _complete(position, block, stride)
        counts = _of_sequences(cu, cu_keys.diff())[token]
        yield of("attends to all compressed keys, whatever the query's place", first, counts)
        alone = _complete(token, block, stride)
        yield of("takes the packed sequences for one", torch.zeros_like(first), alone)
        before = torch.cat([cu_keys[:1], cu_keys[:-2]])
        lo = _of_sequences(cu, before)[token]
        yield of("takes the keys of the sequence before", lo, count)
    yield from sharing.dealt(evidence)
    yield from sharing.hypotheses(evidence)


def variants(inputs: Inputs) -> Iterator[tuple[str, Gradients]]:
    """What a backward of other compressed keys would give."""
    for text, block in _other_blocks(inputs):
        other = Inputs(inputs.tensors, {**inputs.options, "block": block})
        yield text, partial(OP.gradients, other)
    if "cu_seqlens" in inputs.tensors:
        alone = {n: t for n, t in inputs.tensors.items() if n not in ("cu_seqlens", "cu_keys")}
        one = Inputs(alone, inputs.options)
        yield "takes the packed sequences for one", partial(OP.gradients, one)


def _other_blocks(inputs: Inputs) -> list[tuple[str, int]]:
    """What would make a key complete after another number of tokens."""
    block, stride = (int(inputs.options[name]) for name in ("block", "stride"))
    return [
        ("sees each compressed key one token late", block + 1),
        ("sees each compressed key one token early", block - 1),
        ("sees compressed keys that have begun and that are not complete", 1),
        (
            f"sees compressed keys after {stride} tokens, the stride, that are not complete",
            stride,
        ),
    ]

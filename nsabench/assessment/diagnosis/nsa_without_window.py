"""Mistakes in how the branches of the whole without overlap and window are put together (op
nsa_without_window)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from torch import Tensor

from nsabench.assessment.diagnosis import nsa_attention
from nsabench.assessment.diagnosis.evidence import Evidence, Hypothesis
from nsabench.ops import Inputs
from nsabench.ops.nsa_without_window import OP

Gradients = Callable[[Tensor], dict[str, Tensor]]


def hypotheses(evidence: Evidence) -> Iterator[Hypothesis]:
    for text, inputs in _of_others(evidence.inputs):
        yield Hypothesis(text, partial(OP.oracle, inputs))


def variants(inputs: Inputs) -> Iterator[tuple[str, Gradients]]:
    """What a backward with one of these mistakes would give."""
    for text, other in _of_others(inputs):
        yield text, partial(OP.gradients, other)


def _of_others(inputs: Inputs) -> Iterator[tuple[str, Inputs]]:
    """Inputs on which the right function is what the mistake makes of these."""
    yield from nsa_attention.of_gates(inputs)
    yield from nsa_attention.of_counts(inputs)
    yield from nsa_attention.of_packing(inputs)

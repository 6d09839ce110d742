"""The mistakes that are known of each op."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from nsabench.checker.diagnosis import (
    banded,
    decode,
    nsa,
    selection_blocks,
    selection_ranges,
    selection_rows,
    selection_varlen,
    sharing,
)
from nsabench.checker.diagnosis.evidence import Evidence, Hypothesis, Lead, Mistakes, Select
from nsabench.ops import Inputs, Op
from nsabench.ops.selection_blocks import differentiate

# The gradients by name ("k") for a gradient of the output.
Gradients = Callable[[Tensor], dict[str, Tensor]]


@dataclass(frozen=True)
class Knowledge:
    """The mistakes of an op.

    hypotheses: mistakes in its output. others: mistakes in its gradients. For an op whose rows
    select keys: select, the keys of some rows, and lead, the shape that rows are counted in.
    """

    hypotheses: Callable[[Evidence], Iterator[Hypothesis]]
    select: Select | None = None
    lead: Lead | None = None
    others: Callable[[Inputs], Mistakes] | None = None

    def variants(self, op: Op, inputs: Inputs) -> Iterator[tuple[str, Gradients]]:
        """Yield mistakes and the gradients that a backward with them gives."""
        if op.name == "selection_blocks":
            yield "attends to keys after the query", partial(_of_whole_blocks, inputs)
        for text, other in self.others(inputs) if self.others is not None else ():
            yield text, partial(op.gradients, other)


def _of_whole_blocks(inputs: Inputs, grad_out: Tensor) -> dict[str, Tensor]:
    return differentiate(inputs, grad_out, causal=False)[1]


def _of_other_inputs(evidence: Evidence) -> Iterator[Hypothesis]:
    for text, other in nsa.mistakes(evidence.inputs):
        yield Hypothesis(text, partial(evidence.op.oracle, other))


def _of(module: Any, others: Callable[[Inputs], Mistakes] | None = None) -> Knowledge:
    return Knowledge(module.hypotheses, module.select, module.lead, others)


_WHOLE_CACHE = Knowledge(sharing.hypotheses, decode.select_newest, decode.lead)
_NSA = Knowledge(_of_other_inputs, others=nsa.mistakes)
KNOWN = {
    "selection_rows": Knowledge(selection_rows.hypotheses),
    "selection_varlen": _of(selection_varlen),
    "selection_ranges": _of(selection_ranges, selection_ranges.other_spans),
    "selection_blocks": _of(selection_blocks, selection_blocks.other_blocks),
    "sliding_window": Knowledge(
        banded.mistakes_in_a_window, banded.select_window, banded.lead, banded.other_windows
    ),
    "compressed": Knowledge(
        banded.mistakes_in_completeness,
        banded.select_complete,
        banded.lead,
        banded.other_completeness,
    ),
    "causal_attention": Knowledge(
        banded.mistakes_in_causality, banded.select_causal, banded.lead, banded.packed_as_one
    ),
    "decode_dense": _WHOLE_CACHE,
    "decode_compressed": _WHOLE_CACHE,
    "decode_window": Knowledge(decode.mistakes_in_a_window, decode.select_newest, decode.lead),
    "decode_selected": Knowledge(decode.mistakes_in_blocks, decode.select_blocks, decode.lead),
    "decode_step": Knowledge(decode.mistakes_in_a_step),
    "nsa_attention": _NSA,
    "nsa_without_window": _NSA,
}

"""The mistakes that are known of each op."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from nsabench.checker.diagnosis import banded, chosen, keys, nsa
from nsabench.checker.diagnosis.banded import OtherInputs
from nsabench.checker.diagnosis.chosen import OtherKeys
from nsabench.checker.diagnosis.evidence import Evidence, Spans, unite
from nsabench.checker.diagnosis.search import Hypothesis
from nsabench.ops import Inputs


@dataclass(frozen=True)
class Known:
    """The known mistakes of an op. A mistake is a sentence and what it changes.

    inputs: yields other inputs, on which the right op gives what the mistake gives. They serve for
      outputs and for gradients.
    spans: gives the keys that rows select, for an op whose rows select keys.
    keys: yields other keys of some rows, for mistakes that no other inputs show.
    """

    inputs: Callable[[Inputs], OtherInputs] = lambda inputs: iter(())
    spans: Spans | None = None
    keys: Callable[..., OtherKeys] = lambda inputs, rows: iter(())


_PACKED = banded.mistake_packing
_NSA = Known(nsa.mistake_sequences)
_WHOLE_CACHE = Known(spans=banded.select_newest)
NOTHING = Known()
KNOWN = {
    "selection_varlen": Known(spans=banded.select_packed_row, keys=banded.mistake_packed_row),
    "selection_ranges": Known(
        chosen.mistake_span_inputs, chosen.select_spans, chosen.mistake_spans
    ),
    "selection_blocks": Known(
        chosen.mistake_block_inputs, chosen.select_blocks, chosen.mistake_blocks
    ),
    "sliding_window": Known(
        banded.mistake_window_inputs, banded.select_window, banded.mistake_window
    ),
    "compressed": Known(
        banded.mistake_complete_inputs, banded.select_complete, banded.mistake_complete
    ),
    "causal_attention": Known(_PACKED, banded.select_causal, banded.mistake_causal),
    "decode_dense": _WHOLE_CACHE,
    "decode_compressed": _WHOLE_CACHE,
    "decode_window": Known(
        banded.mistake_newest_inputs, banded.select_newest, banded.mistake_newest
    ),
    "decode_selected": Known(chosen.mistake_cache_block_inputs, chosen.select_spans),
    "decode_step": Known(nsa.mistake_step),
    "nsa_attention": _NSA,
    "nsa_without_window": _NSA,
}


def mistake_scale(inputs: Inputs, dim_v: int) -> OtherInputs:
    """Yield mistakes of any attention in the scale of its softmax."""
    if "sm_scale" not in inputs.options or "q" not in inputs.tensors:
        return
    right, dim = inputs.options["sm_scale"], inputs.tensors["q"].shape[-1]
    twice = ""
    if math.isclose(right**2, 1 / dim, rel_tol=1e-6):
        twice = ", the square of the right one, which is then applied twice"
    wrong = {
        "1, that is, none": 1.0,
        f"1/D = 1/{dim}{twice}": 1 / dim,
        f"1/sqrt(Dv) = {dim_v**-0.5:.4g}": dim_v**-0.5,
        "the right one without the factor log2(e) that exp2 needs": right / math.log2(math.e),
        "the right one times log2(e), which exp does not need": right * math.log2(math.e),
        "the square of the right one, applied twice": right**2,
    }
    for text, scale in wrong.items():
        if not math.isclose(scale, right, rel_tol=1e-6):
            yield f"uses as softmax scale {text}", inputs.replaced(sm_scale=scale)


def find_known(evidence: Evidence, name: str) -> Iterator[Hypothesis]:
    """Yield what is known of the op of that name as hypotheses for the output."""
    known = KNOWN.get(name, NOTHING)
    for text, other in known.inputs(evidence.full):
        yield Hypothesis(text, partial(evidence.compute, other))
    if evidence.selection is not None:
        for text, found in known.keys(evidence.full, evidence.rows):
            if isinstance(found, Tensor):
                found = unite(found.long(), evidence.selection.k.shape[2])
            yield Hypothesis(text, partial(evidence.attend, found))
        yield from keys.find_in_selection(evidence, evidence.selection)
    elif name == "selection_rows":
        yield from keys.find_in_rows(evidence)

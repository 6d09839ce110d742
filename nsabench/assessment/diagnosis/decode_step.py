"""Mistakes in how the branches of a decode step are put together, and in their sizes (op
decode_step)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch

from nsabench.assessment.diagnosis.evidence import Evidence, Hypothesis
from nsabench.ops import DecodeSizes, Inputs

BRANCHES = ("compressed", "selected", "window")


def hypotheses(evidence: Evidence) -> Iterator[Hypothesis]:
    inputs = evidence.inputs
    gates, sizes = inputs.tensors["gates"], inputs.options["sizes"]
    for i, branch in enumerate(BRANCHES):
        without = gates.clone()
        without[..., i] = 0
        text = f"leaves out the {branch} branch"
        yield Hypothesis(text, partial(evidence.op.oracle, evidence.with_tensor("gates", without)))
    ones = evidence.with_tensor("gates", torch.ones_like(gates))
    yield Hypothesis("adds the branches without their gates", partial(evidence.op.oracle, ones))
    for i, j in ((0, 1), (0, 2), (1, 2)):
        order = [0, 1, 2]
        order[i], order[j] = j, i
        swapped = evidence.with_tensor("gates", gates[..., order])
        text = f"has the gates of the {BRANCHES[i]} and the {BRANCHES[j]} branch exchanged"
        yield Hypothesis(text, partial(evidence.op.oracle, swapped))
    yield from _sizes(evidence, sizes)


def _sizes(evidence: Evidence, sizes: DecodeSizes) -> Iterator[Hypothesis]:
    for window in (sizes.window - 1, sizes.window + 1):
        if window > 0:
            text = f"uses a window of {window} keys instead of {sizes.window}"
            yield _with_sizes(evidence, text, replace(sizes, window=window))
    for count in (sizes.n_selected - 1, sizes.n_selected + 1):
        text = f"selects {count} blocks instead of {sizes.n_selected}"
        yield _with_sizes(evidence, text, replace(sizes, n_selected=count))


def _with_sizes(evidence: Evidence, text: str, sizes: DecodeSizes) -> Hypothesis:
    inputs = Inputs(evidence.inputs.tensors, {**evidence.inputs.options, "sizes": sizes})
    return Hypothesis(text, partial(evidence.op.oracle, inputs))

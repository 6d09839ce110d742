"""Mistakes in how the branches of the whole attention are put together, and in their sizes (op
nsa_attention)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import combinations

import torch
from torch import Tensor

from nsabench.assessment.diagnosis.evidence import Evidence, Hypothesis
from nsabench.ops import Inputs
from nsabench.ops._nsa import LOCAL
from nsabench.ops.nsa_attention import OP

Gradients = Callable[[Tensor], dict[str, Tensor]]

BRANCHES = ("compressed", "selected", "window")


def hypotheses(evidence: Evidence) -> Iterator[Hypothesis]:
    for text, inputs in _of_others(evidence.inputs):
        yield Hypothesis(text, partial(evidence.op.oracle, inputs))


def variants(inputs: Inputs) -> Iterator[tuple[str, Gradients]]:
    """What a backward with one of these mistakes would give."""
    for text, other in _of_others(inputs):
        yield text, partial(OP.gradients, other)


def _of_others(inputs: Inputs) -> Iterator[tuple[str, Inputs]]:
    """Inputs on which the right function is what the mistake makes of these."""
    yield from of_gates(inputs)
    yield from _sizes(inputs)
    yield from of_packing(inputs)


def of_packing(inputs: Inputs) -> Iterator[tuple[str, Inputs]]:
    """Mistakes in where sequences begin."""
    if "cu_seqlens" in inputs.tensors:
        alone = {name: t for name, t in inputs.tensors.items() if name != "cu_seqlens"}
        options = {**inputs.options, "max_seqlen": alone["q"].shape[1]}
        yield "takes the packed sequences for one", Inputs(alone, options)


def of_gates(inputs: Inputs) -> Iterator[tuple[str, Inputs]]:
    """Mistakes in the gates, of which a variant may have fewer than the whole."""
    gates = inputs.tensors["gates"]
    count = gates.shape[-1]

    def gated(other: Tensor) -> Inputs:
        return Inputs({**inputs.tensors, "gates": other}, inputs.options)

    for i, branch in enumerate(BRANCHES[:count]):
        without = gates.clone()
        without[..., i] = 0
        yield f"leaves out the {branch} branch", gated(without)
    yield "adds the branches without their gates", gated(torch.ones_like(gates))
    for i, j in combinations(range(count), 2):
        order = [*range(count)]
        order[i], order[j] = j, i
        text = f"has the gates of the {BRANCHES[i]} and the {BRANCHES[j]} branch exchanged"
        yield text, gated(gates[..., order])
    heads = gates.shape[2]
    if heads > 1:
        text = "takes the gates of head 0 for all query heads"
        yield text, gated(gates[:, :, :1].expand(-1, -1, heads, -1))
    yield "squashes the gates, which are squashed already", gated(torch.sigmoid(gates))


def of_counts(inputs: Inputs) -> Iterator[tuple[str, Inputs]]:
    """Mistakes in how many blocks are selected."""
    count = inputs.options["n_selected"]
    for other in (count - 1, count + 1):
        if other > LOCAL:
            options = {**inputs.options, "n_selected": other}
            yield f"selects {other} blocks instead of {count}", Inputs(inputs.tensors, options)


def _sizes(inputs: Inputs) -> Iterator[tuple[str, Inputs]]:
    sizes = inputs.options

    def of(**others: int) -> Inputs:
        return Inputs(inputs.tensors, {**sizes, **others})

    window = sizes["window"]
    for other in (window - 1, window + 1):
        if other > 0:
            yield f"uses a window of {other} keys instead of {window}", of(window=other)
    yield from of_counts(inputs)
    block, stride = sizes["block"], sizes["stride"]
    if block != stride:
        text = f"compresses {stride} tokens to a key instead of {block}, without overlap"
        yield text, of(block=stride)

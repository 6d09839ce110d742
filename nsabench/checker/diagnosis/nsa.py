"""Mistakes in how the branches of Native Sparse Attention are put together, and in their sizes."""

from __future__ import annotations

from itertools import combinations

import torch

from nsabench.checker.diagnosis.banded import packed_as_one
from nsabench.checker.diagnosis.evidence import Mistakes
from nsabench.ops import Inputs
from nsabench.ops._nsa import LOCAL

BRANCHES = ("compressed", "selected", "window")


def mistakes(inputs: Inputs) -> Mistakes:
    """Yield those of either op, with and without a window."""
    gates, options = inputs.tensors["gates"], inputs.options
    yield from mistakes_in_gates(inputs)
    heads = gates.shape[2]
    if heads > 1:
        text = "takes the gates of head 0 for all query heads"
        yield text, inputs.replaced({"gates": gates[:, :, :1].expand(-1, -1, heads, -1)})
    squashed = inputs.replaced({"gates": torch.sigmoid(gates)})
    yield "squashes the gates, which are squashed already", squashed
    window, count = options.get("window", 0), options["n_selected"]
    for other in (window - 1, window + 1) if window else ():
        if other > 0:
            text = f"uses a window of {other} keys instead of {window}"
            yield text, inputs.replaced(window=other)
    for other in (count - 1, count + 1):
        if other > LOCAL:
            yield f"selects {other} blocks instead of {count}", inputs.replaced(n_selected=other)
    block, stride = options.get("block"), options.get("stride")
    if block != stride:
        text = f"compresses {stride} tokens to a key instead of {block}, without overlap"
        yield text, inputs.replaced(block=stride)
    yield from packed_as_one(inputs)


def mistakes_in_gates(inputs: Inputs) -> Mistakes:
    """gates: [..., HQ, branches]."""
    gates = inputs.tensors["gates"]
    count = gates.shape[-1]
    for i, branch in enumerate(BRANCHES[:count]):
        without = gates.clone()
        without[..., i] = 0
        yield f"leaves out the {branch} branch", inputs.replaced({"gates": without})
    ones = inputs.replaced({"gates": torch.ones_like(gates)})
    yield "adds the branches without their gates", ones
    for i, j in combinations(range(count), 2):
        order = [*range(count)]
        order[i], order[j] = j, i
        text = f"has the gates of the {BRANCHES[i]} and the {BRANCHES[j]} branch exchanged"
        yield text, inputs.replaced({"gates": gates[..., order]})

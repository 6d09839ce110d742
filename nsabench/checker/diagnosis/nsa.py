"""Mistakes in how the branches of Native Sparse Attention are put together, and in their sizes."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import torch

from nsabench.checker.diagnosis.banded import mistake_packing, mistake_window_size
from nsabench.checker.diagnosis.evidence import Known, OtherInputs
from nsabench.ops import DecodeSizes, Inputs
from nsabench.ops._nsa import LOCAL

BRANCHES = ("compressed", "selected", "window")


def mistake_sequences(inputs: Inputs) -> OtherInputs:
    gates, options = inputs.tensors["gates"], inputs.options
    yield from _mistake_gates(inputs)
    heads = gates.shape[2]
    if heads > 1:
        text = "takes the gates of head 0 for all query heads"
        yield text, inputs.replaced({"gates": gates[:, :, :1].expand(-1, -1, heads, -1)})
    squashed = inputs.replaced({"gates": torch.sigmoid(gates)})
    yield "squashes the gates, which are squashed already", squashed
    if "window" in options:
        yield from mistake_window_size(inputs)
    count = options["n_selected"]
    for other in (count - 1, count + 1):
        if other > LOCAL:
            yield f"selects {other} blocks instead of {count}", inputs.replaced(n_selected=other)
    block, stride = options.get("block"), options.get("stride")
    if block != stride:
        text = f"compresses {stride} tokens to a key instead of {block}, without overlap"
        yield text, inputs.replaced(block=stride)
    yield from mistake_packing(inputs)


def mistake_step(inputs: Inputs) -> OtherInputs:
    yield from _mistake_gates(inputs)
    sizes: DecodeSizes = inputs.options["sizes"]
    for text, other in mistake_window_size(inputs.replaced(window=sizes.window)):
        yield text, inputs.replaced(sizes=replace(sizes, window=other.options["window"]))
    for count in (sizes.n_selected - 1, sizes.n_selected + 1):
        text = f"selects {count} blocks instead of {sizes.n_selected}"
        yield text, inputs.replaced(sizes=replace(sizes, n_selected=count))


def _mistake_gates(inputs: Inputs) -> OtherInputs:
    gates = inputs.tensors["gates"]
    branches = BRANCHES[: gates.shape[-1]]
    for i, branch in enumerate(branches):
        without = gates.clone()
        without[..., i] = 0
        yield f"leaves out the {branch} branch", inputs.replaced({"gates": without})
    ones = inputs.replaced({"gates": torch.ones_like(gates)})
    yield "adds the branches without their gates", ones
    for i, j in combinations(range(len(branches)), 2):
        order = [*range(len(branches))]
        order[i], order[j] = j, i
        text = f"has the gates of the {branches[i]} and the {branches[j]} branch exchanged"
        yield text, inputs.replaced({"gates": gates[..., order]})


KNOWN = {
    "nsa_attention": Known(mistake_sequences),
    "nsa_without_window": Known(mistake_sequences),
    "decode_step": Known(mistake_step),
}

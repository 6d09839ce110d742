"""The known mistakes of each op, including mistakes in the softmax scale and the NSA branches."""

from __future__ import annotations

import math
from dataclasses import asdict
from itertools import combinations

import torch

from nsabench.checker.diagnosis import selections
from nsabench.checker.diagnosis.evidence import Known, OtherInputs
from nsabench.checker.diagnosis.search import mistake
from nsabench.ops import DecodeSizes, Inputs

BRANCHES = ("compressed", "selected", "window")


def mistake_scale(inputs: Inputs, dim_v: int) -> OtherInputs:
    if "sm_scale" not in inputs.options or "q" not in inputs.tensors:
        return
    right, dim = inputs.options["sm_scale"], inputs.tensors["q"].shape[-1]
    for name, scale in (
        ("scale-missing", 1.0),
        ("scale-twice", right**2),
        ("scale-one-over-d", 1 / dim),
        ("scale-of-dv", dim_v**-0.5),
        ("log2e-missing", right / math.log2(math.e)),
        ("log2e-extra", right * math.log2(math.e)),
    ):
        if not math.isclose(scale, right, rel_tol=1e-6):
            yield mistake(name, dim=dim), inputs.replaced(sm_scale=scale)


def mistake_sequences(inputs: Inputs) -> OtherInputs:
    gates, options = inputs.tensors["gates"], inputs.options
    yield from _mistake_gates(inputs)
    if gates.shape[2] > 1:
        first = gates[:, :, :1].expand_as(gates)
        yield mistake("gates-of-head"), inputs.replaced({"gates": first})
    yield mistake("gates-squashed"), inputs.replaced({"gates": torch.sigmoid(gates)})
    yield from _mistake_sizes(inputs)
    block, stride = options.get("block"), options.get("stride")
    if block != stride:
        yield mistake("no-overlap", block=block, stride=stride), inputs.replaced(block=stride)
    yield from selections.mistake_packing(inputs)


def mistake_step(inputs: Inputs) -> OtherInputs:
    yield from _mistake_gates(inputs)
    sizes = asdict(inputs.options["sizes"])
    for diagnosis, other in _mistake_sizes(inputs.replaced(**sizes)):
        changed = DecodeSizes(**{name: other.options[name] for name in sizes})
        yield diagnosis, inputs.replaced(sizes=changed)


def _mistake_sizes(inputs: Inputs) -> OtherInputs:
    if "window" in inputs.options:
        yield from selections.mistake_window_size(inputs)
    right = inputs.options["n_selected"]
    for count in (right - 1, right + 1):
        diagnosis = mistake("block-count", count=count, right=right)
        yield diagnosis, inputs.replaced(n_selected=count)


def _mistake_gates(inputs: Inputs) -> OtherInputs:
    gates = inputs.tensors["gates"]
    branches = BRANCHES[: gates.shape[-1]]
    for i, branch in enumerate(branches):
        without = gates.clone()
        without[..., i] = 0
        yield mistake("branch-lost", branch=branch), inputs.replaced({"gates": without})
    yield mistake("gates-ignored"), inputs.replaced({"gates": torch.ones_like(gates)})
    for i, j in combinations(range(len(branches)), 2):
        order = [*range(len(branches))]
        order[i], order[j] = j, i
        diagnosis = mistake("gates-exchanged", first=branches[i], second=branches[j])
        yield diagnosis, inputs.replaced({"gates": gates[..., order]})


NOTHING = Known()
KNOWN = {
    **selections.KNOWN,
    "nsa_attention": Known(mistake_sequences),
    "nsa_without_window": Known(mistake_sequences),
    "decode_step": Known(mistake_step),
}

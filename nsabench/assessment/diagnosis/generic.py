"""Mistakes that any op can make, and some of any attention, known by its q, k, v and scale."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from nsabench.assessment.diagnosis.evidence import Evidence, Hypothesis


def hypotheses(evidence: Evidence) -> Iterator[Hypothesis]:
    """Every hypothesis that can be put to this evidence, likely ones first."""
    yield from _remembered(evidence)
    yield from _scales(evidence)
    yield from _other_rows(evidence)
    yield from _swapped(evidence)
    yield from _heads(evidence)
    yield from _straight_line(evidence)


def _remembered(e: Evidence) -> Iterator[Hypothesis]:
    yield Hypothesis("is zero everywhere", lambda: torch.zeros_like(e.oracle))
    previous = e.previous
    if previous is not None and previous.shape == e.oracle.shape:
        yield Hypothesis("is the output of an earlier call, not of this one", lambda: previous)


def _scales(e: Evidence) -> Iterator[Hypothesis]:
    if "sm_scale" not in e.inputs.options or "q" not in e.inputs.tensors:
        return
    right = e.inputs.options["sm_scale"]
    dim, dim_v = e.inputs.tensors["q"].shape[-1], e.oracle.shape[-1]
    wrong = {
        "1, that is, none": 1.0,
        f"1/D = 1/{dim}": 1 / dim,
        f"1/sqrt(Dv) = {dim_v**-0.5:.4g}": dim_v**-0.5,
        "the right one without the factor log2(e) that exp2 needs": right / math.log2(math.e),
        "the right one times log2(e), which exp does not need": right * math.log2(math.e),
        "the square of the right one, applied twice": right**2,
    }
    for text, scale in wrong.items():
        if not math.isclose(scale, right, rel_tol=1e-6):
            inputs = e.with_options(sm_scale=scale)
            yield Hypothesis(
                f"uses as softmax scale {text}",
                partial(e.op.oracle, inputs),
            )


def _other_rows(e: Evidence) -> Iterator[Hypothesis]:
    for where, offset in (("next", 1), ("previous", -1)):
        other = e.of_rows(offset)
        if other is None:
            return
        yield Hypothesis(
            f"holds in each row the result of the {where} one",
            partial(e.op.oracle, other),
        )
        others = list(e.inputs.tensors)[1:]
        for name in ("k", "v") if {"k", "v"} <= set(others) else others:
            if other.tensors[name].shape != e.inputs.tensors[name].shape:
                continue  # of packed rows, each has keys of its own number
            mixed = e.with_tensor(name, other.tensors[name])
            yield Hypothesis(
                f"takes {name.upper()} of the {where} row",
                partial(e.op.oracle, mixed),
            )


def _swapped(e: Evidence) -> Iterator[Hypothesis]:
    if not {"k", "v"} <= e.inputs.tensors.keys():
        return
    k, v = e.inputs.tensors["k"], e.inputs.tensors["v"]
    if k.shape == v.shape:
        swapped = e.with_tensor("k", v)
        swapped.tensors["v"] = k
        yield Hypothesis("has K and V swapped", partial(e.op.oracle, swapped))


def _heads(e: Evidence) -> Iterator[Hypothesis]:
    """Which head of the oracle does each head of the output hold? Heads are axis -2."""
    if "q" not in e.inputs.tensors or e.oracle.dim() < 2 or e.oracle.shape[-2] == 1:
        return
    heads = e.oracle.shape[-2]
    heads_out = e.output.movedim(-2, 0).flatten(1)
    right = e.oracle.movedim(-2, 0).flatten(1)
    nearest = torch.cdist(heads_out, right, p=1.0).argmin(1).tolist()
    if nearest == list(range(heads)):
        return
    moved = [f"head {i} holds head {j}" for i, j in enumerate(nearest) if i != j]
    text = (
        f"holds head {nearest[0]} in every head" if len(set(nearest)) == 1 else "has heads permuted"
    )
    some = ", ".join(moved[:3]) + (", ..." if len(moved) > 3 else "")
    yield Hypothesis(
        text if len(set(nearest)) == 1 else f"{text} ({some})", lambda: e.oracle[..., nearest, :]
    )


def _straight_line(e: Evidence) -> Iterator[Hypothesis]:
    """Off by a constant, or by a constant factor."""
    offset = float((e.output - e.oracle).mean())
    yield Hypothesis(f"is off by a constant {offset:.3g}", lambda: e.oracle + offset)
    factor = _factor(e.output, e.oracle)
    yield Hypothesis(f"is {factor:.4g} times the right one", lambda: e.oracle * factor)


def _factor(output: Tensor, oracle: Tensor) -> float:
    square = float((oracle * oracle).sum())
    return float((output * oracle).sum()) / square if square else 0.0

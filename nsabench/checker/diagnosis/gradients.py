"""Diagnose a wrong gradient by mistakes of any op, of attention, and of its op (`known.py`)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
from torch import Tensor

from nsabench.checker.diagnosis import search
from nsabench.checker.diagnosis.known import KNOWN, NOTHING, mistake_scale
from nsabench.checker.diagnosis.search import FAR_OFF, TIME_LIMIT_S, Diagnosis, Hypothesis, mistake
from nsabench.checker.diagnosis.weights import LOWER, TILES
from nsabench.ops import Inputs, Op
from nsabench.ops._attention import AttentionOp

SMALL = 0.05  # an explanation by a factor leaves less than this share of the gradient's norm
NEAR = 0.02  # greatest relative distance of a factor from a known one
FACTORS = {
    "log2-missing": math.log(2),
    "log2-twice": 1 / math.log(2),
    "sign": -1.0,
    "half": 0.5,
    "twice": 2.0,
}
MOST_ELEMENTS = 1 << 25  # hypotheses that need gradients of a larger problem are not tried


@dataclass(frozen=True)
class Problem:
    """A wrong gradient of the input `by`, such as "k", and the tensors of its call."""

    op: Op
    inputs: Inputs
    grad_out: Tensor
    by: str
    got: Tensor
    right: Tensor
    previous: Tensor | None

    @property
    def is_small(self) -> bool:
        return int(self.grad_out.numel() + self.got.numel()) <= MOST_ELEMENTS

    @property
    def scale(self) -> float:
        return float(self.inputs.options["sm_scale"])

    def compute(self, grad_out: Tensor, inputs: Inputs | None = None) -> Tensor:
        return self.blank(self.op.gradients(inputs or self.inputs, grad_out)[self.by])

    def blank(self, result: Tensor) -> Tensor:
        return search.blank_left_out(self.op, result, result)[1]

    @cached_property
    def off(self) -> Tensor:
        return (self.got - self.right).abs()

    @cached_property
    def wrong(self) -> Tensor:
        by_vector = self.off.mean(-1)
        return by_vector >= by_vector.max() / FAR_OFF

    def measure_error(self, guess: Tensor) -> float:
        return float((self.got - guess).abs().mean(-1)[self.wrong].mean())


def diagnose_gradient(
    op: Op,
    inputs: Inputs,
    grad_out: Tensor,
    name: str,
    got: Tensor,
    right: Tensor,
    previous: Tensor | None = None,
    time_limit_s: float = TIME_LIMIT_S,
) -> Diagnosis:
    """Return the known mistake that explains a wrong gradient, or else where it is off.

    grad_out: the gradient of the output, up to a factor. name: the wrong gradient, such as `dq`.
    previous: the right gradient of the previous call, if that call had other inputs.
    """
    got, right = search.blank_left_out(op, got, right)
    if previous is not None:
        previous = search.blank_left_out(op, previous, previous)[1]
    if not_finite := search.locate_not_finite(got):
        return not_finite.surrounded(f"{name}: ")
    p = Problem(op, inputs, grad_out, name.removeprefix("d"), got.double(), right, previous)
    if p.is_small:
        # Gradients are linear in `grad_out`: comparing them with `right` gives the lacking factor.
        factor = search.find_factor(right, p.compute(grad_out)) or 1.0
        p = replace(p, grad_out=grad_out.double() * factor)
    explained = _find_factor(p) or search.explain(
        find_hypotheses(p), p.measure_error, right, p.off.mean(-1), time_limit_s
    )
    return explained.surrounded(f"{name} ") if explained else search.locate_worst(p.off, name)


def _find_factor(p: Problem) -> Diagnosis | None:
    if not p.got.any():
        return mistake("all-zero")
    if not p.right.any():
        return None
    factors = dict(FACTORS)
    if isinstance(p.op, AttentionOp):
        factors |= {"gradient-unscaled": 1 / p.scale, "gradient-scaled-twice": p.scale}
    factor = search.find_factor(p.got, p.right)
    if _measure_rest(p.got, p.right, factor) < SMALL and abs(factor - 1) > NEAR:
        near = (name for name, f in factors.items() if math.isclose(factor, f, rel_tol=NEAR))
        return mistake(next(near, "constant-factor"), factor=f"{factor:.4g}")
    if p.previous is not None and p.previous.any():
        factor = search.find_factor(p.got, p.previous)
        if _measure_rest(p.got, p.previous, factor) < SMALL:
            return mistake("earlier-call", result="gradient")
    return None


def _measure_rest(got: Tensor, guess: Tensor, factor: float) -> float:
    return float((got - factor * guess).norm() / (got.norm() or 1.0))


def find_hypotheses(p: Problem) -> Iterator[Hypothesis]:
    unwritten = search.find_unwritten(p.got, p.right, p.off)
    if unwritten is not None:
        diagnosis = mistake("not-written", where=search.locate(unwritten))
        yield diagnosis, lambda: p.right.masked_fill(unwritten, 0.0)
    if not p.is_small:
        return
    for diagnosis, other in KNOWN.get(p.op.name, NOTHING).inputs(p.inputs):
        yield diagnosis, partial(p.compute, p.grad_out, other)
    if isinstance(p.op, AttentionOp):
        yield from _find_missing_term(p)
        yield from _find_left_out(p)
        for diagnosis, other in mistake_scale(p.inputs, p.grad_out.shape[-1]):
            yield diagnosis, partial(p.compute, p.grad_out, other)
        yield from _find_fewer_bits(p)


def _find_missing_term(p: Problem) -> Iterator[Hypothesis]:
    """Yield the gradient if rowsum(do o) is left out of ds = p (do v^T - rowsum(do o)) scale."""
    delta = (p.grad_out * p.blank(p.op.oracle(p.inputs))).sum(-1, keepdim=True)
    with_keys = p.inputs.replaced({"v": p.inputs.tensors["k"]})

    def predict() -> Tensor:
        if p.by == "q":
            return p.right + p.scale * delta * p.op.oracle(with_keys)
        queries = delta * p.inputs.tensors["q"].double()
        return p.right + p.scale * p.op.gradients(with_keys, queries)["v"]

    if p.by in ("q", "k"):
        yield mistake("delta-missing"), predict


def _find_left_out(p: Problem) -> Iterator[Hypothesis]:
    if p.by == "q":
        return
    q, k = p.inputs.tensors["q"], p.inputs.tensors["k"]
    group = q.shape[3] if q.dim() == 5 else q.shape[2] // k.shape[2]
    head = torch.arange(q.shape[-2], device=q.device).unsqueeze(1) % group
    count = q.shape[1]
    query = torch.arange(count, device=q.device).view(-1, *[1] * (q.dim() - 2))
    kept = {}
    if group > 1:
        ends = {"first": 0, "last": group - 1}
        for which, number in ends.items():
            kept[mistake("query-head-only", which=which)] = head == number
        for which, number in ends.items():
            kept[mistake("query-head-lost", which=which)] = head != number
    kept[mistake("query-lost", which="last")] = query < count - 1
    kept[mistake("query-lost", which="first")] = query > 0
    for tile in TILES:
        if count > tile and count % tile:
            kept[mistake("queries-lost", count=count % tile, tile=tile)] = (
                query < count // tile * tile
            )
    for diagnosis, some in kept.items():
        yield diagnosis, partial(p.compute, p.grad_out * some)


def _find_fewer_bits(p: Problem) -> Iterator[Hypothesis]:
    if p.inputs.tensors["q"].dtype != torch.float32:
        return
    for name, dtype in LOWER.items():
        yield mistake("gradient-rounded", format=name), p.right.to(dtype).double
        narrow = p.grad_out.to(dtype).double()
        yield mistake("grad-out-rounded", format=name), partial(p.compute, narrow)

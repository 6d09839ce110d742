"""Diagnosis of a wrong gradient: mistakes of any op, of any attention, and of the op (`known`)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
from torch import Tensor

from nsabench.checker.diagnosis import search
from nsabench.checker.diagnosis.keys import LOWER, TILES
from nsabench.checker.diagnosis.known import KNOWN, NOTHING, mistake_scale
from nsabench.checker.diagnosis.search import FAR_OFF, Hypothesis, locate
from nsabench.ops import Inputs, Op
from nsabench.ops._attention import AttentionOp

SMALL = 0.05  # an explanation by a factor leaves at most this share of the gradient's norm
KNOWN_FACTORS = {
    math.log(2): "a factor log(2) is missing: exp2 was differentiated as exp",
    1 / math.log(2): "a factor log(2) is applied once too often",
    -1.0: "its sign is wrong",
    0.5: "half of it is missing",
    2.0: "it is counted twice",
}
NEAR = 0.02
MOST_ELEMENTS = 1 << 25


@dataclass(frozen=True)
class Problem:
    """A wrong gradient by an input, `by` ("k"), and what it was made from."""

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

    @property
    def group(self) -> int:
        q, k = self.inputs.tensors["q"], self.inputs.tensors["k"]
        return int(q.shape[3] if q.dim() == 5 else q.shape[2] // k.shape[2])

    @property
    def head_in_group(self) -> Tensor:
        """The place of each query head in its group: [heads, 1]."""
        q = self.inputs.tensors["q"]
        return torch.arange(q.shape[-2], device=q.device).unsqueeze(1) % self.group

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

    def error(self, guess: Tensor) -> float:
        return float((self.got - guess).abs().mean(-1)[self.wrong].mean())


def diagnose_gradient(
    op: Op,
    inputs: Inputs,
    grad_out: Tensor,
    name: str,
    got: Tensor,
    right: Tensor,
    previous: Tensor | None = None,
) -> str:
    """Say in one line what a wrong gradient looks like, given its inputs.

    grad_out: the gradient of the output, up to a factor. name: such as `dq`. right: the expected
    gradient. previous: what the call before should have returned, if it had other inputs.
    """
    got, right = search.blank_left_out(op, got, right)
    if previous is not None:
        previous = search.blank_left_out(op, previous, previous)[1]
    if text := search.locate_not_finite(got):
        return text
    problem = Problem(op, inputs, grad_out, name.removeprefix("d"), got.double(), right, previous)
    if problem.is_small:
        # Gradients are linear in `grad_out`, so its factor shows in what is right.
        factor = search.find_factor(right, problem.compute(grad_out)) or 1.0
        problem = replace(problem, grad_out=grad_out.double() * factor)
    mistake = next(_find_factor(problem), "")
    if not mistake:
        off = problem.error(right)
        best, error = search.find_best(find_hypotheses(problem), problem.error, off)
        mistake = search.explain(best, error, off, problem.off.mean(-1))
    if mistake:
        return f"{name} {mistake}"
    return f"the largest errors of {name} are in {search.locate_worst(problem.off)}"


def _find_factor(p: Problem) -> Iterator[str]:
    if not p.got.any():
        yield "is zero everywhere"
    if not p.right.any():
        return
    known = dict(KNOWN_FACTORS)
    if isinstance(p.op, AttentionOp):
        known[1 / p.scale] = "the softmax scale is missing"
        known[p.scale] = "the softmax scale is applied twice"
    factor = search.find_factor(p.got, p.right)
    if _measure_rest(p.got, p.right, factor) < SMALL and abs(factor - 1) > NEAR:
        texts = (text for value, text in known.items() if math.isclose(factor, value, rel_tol=NEAR))
        yield f"is {factor:.4g} times the right one" + "".join(f" ({text})" for text in texts)
    if p.previous is not None and p.previous.any():
        factor = search.find_factor(p.got, p.previous)
        if _measure_rest(p.got, p.previous, factor) < SMALL:
            yield "is the gradient of an earlier call, not of this one"


def find_hypotheses(p: Problem) -> Iterator[Hypothesis]:
    unwritten = search.zeros_explain(p.got, p.right, p.off)
    if unwritten is not None:
        yield Hypothesis(
            f"is zero in {locate(unwritten)}, and right elsewhere",
            lambda: p.right.masked_fill(unwritten, 0.0),
        )
    if not p.is_small:
        return
    for text, other in KNOWN.get(p.op.name, NOTHING).inputs(p.inputs):
        yield Hypothesis(text, partial(p.compute, p.grad_out, other))
    if isinstance(p.op, AttentionOp):
        yield from _find_missing_term(p)
        yield from _find_left_out(p)
        for text, other in mistake_scale(p.inputs, p.grad_out.shape[-1]):
            yield Hypothesis(text, partial(p.compute, p.grad_out, other))
        yield from _find_fewer_bits(p)


def _find_missing_term(p: Problem) -> Iterator[Hypothesis]:
    """Yield ds = p (do v^T - rowsum(do o)) scale without its second term."""
    delta = (p.grad_out * p.blank(p.op.oracle(p.inputs))).sum(-1, keepdim=True)
    text = "lacks the term rowsum(do o)"
    with_keys = p.inputs.replaced({"v": p.inputs.tensors["k"]})
    if p.by == "q":
        yield Hypothesis(text, lambda: p.right + p.scale * delta * p.op.oracle(with_keys))
    elif p.by == "k":
        q = p.inputs.tensors["q"].double()
        yield Hypothesis(
            text, lambda: p.right + p.scale * p.op.gradients(with_keys, delta * q)["v"]
        )


def _find_left_out(p: Problem) -> Iterator[Hypothesis]:
    if p.by == "q":
        return
    q, group, head = p.inputs.tensors["q"], p.group, p.head_in_group
    if group > 1:
        for text, kept in (
            ("sums over the first query head of each group only", head == 0),
            ("sums over the last query head of each group only", head == group - 1),
            ("leaves out the last query head of each group", head != group - 1),
            ("leaves out the first query head of each group", head != 0),
        ):
            yield Hypothesis(text, partial(p.compute, p.grad_out * kept))
    count = q.shape[1]
    place = torch.arange(count, device=q.device).view(-1, *[1] * (q.dim() - 2))
    yield Hypothesis(
        "leaves out the last query", partial(p.compute, p.grad_out * (place < count - 1))
    )
    yield Hypothesis("leaves out the first query", partial(p.compute, p.grad_out * (place > 0)))
    for tile in TILES:
        if count > tile and count % tile:
            text = f"leaves out the last {count % tile} queries, which fill no tile of {tile}"
            some = place < count // tile * tile
            yield Hypothesis(text, partial(p.compute, p.grad_out * some))


def _find_fewer_bits(p: Problem) -> Iterator[Hypothesis]:
    if p.inputs.tensors["q"].dtype != torch.float32:
        return
    for name, dtype in LOWER.items():
        yield Hypothesis(f"is rounded to {name}", p.right.to(dtype).double)
        narrow = p.grad_out.to(dtype).double()
        text = f"takes the gradient of the output rounded to {name}"
        yield Hypothesis(text, partial(p.compute, narrow))


def _measure_rest(got: Tensor, guess: Tensor, factor: float) -> float:
    return float((got - factor * guess).norm() / (got.norm() or 1.0))

"""Mistakes in a gradient: of any op, of any attention, told by its q, k, v and scale, and of the op
(`known`)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
from torch import Tensor

from nsabench.checker.diagnosis.evidence import FAR_OFF, Hypothesis
from nsabench.checker.diagnosis.keys import TILES
from nsabench.checker.diagnosis.known import KNOWN, Gradients
from nsabench.checker.diagnosis.location import is_all, locate, within
from nsabench.checker.diagnosis.search import BETTER, EXPLAINS, SURE, TIME_LIMIT_S
from nsabench.machine.clock import now_s
from nsabench.ops import Inputs, Op, rows_left_out
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
MOST_PARTS = 1 << 20  # elements of gradients that a sum in parts may go through


@dataclass(frozen=True)
class Problem:
    """A wrong gradient by `of` ("k"), and what it was made from."""

    op: Op
    inputs: Inputs
    grad_out: Tensor
    of: str
    got: Tensor
    right: Tensor
    previous: Tensor | None

    @property
    def is_small(self) -> bool:
        """Whether there is time and memory to compute its gradients a few times."""
        return int(self.grad_out.numel() + self.got.numel()) <= MOST_ELEMENTS

    @property
    def scale(self) -> float:
        return float(self.inputs.options["sm_scale"])

    @property
    def group(self) -> int:
        """The number of query heads that share a KV head."""
        q, k = self.inputs.tensors["q"], self.inputs.tensors["k"]
        return int(q.shape[3] if q.dim() == 5 else q.shape[2] // k.shape[2])

    @property
    def head_in_group(self) -> Tensor:
        """The place of each query head in its group: [heads, 1]."""
        q = self.inputs.tensors["q"]
        return torch.arange(q.shape[-2], device=q.device).unsqueeze(1) % self.group

    def by(self, grad_out: Tensor, inputs: Inputs | None = None) -> Tensor:
        """Compute the gradient for another gradient of the output, or other inputs."""
        return self.held(self.op.gradients(inputs or self.inputs, grad_out)[self.of])

    def held(self, result: Tensor) -> Tensor:
        """Set the rows that are not compared to zero, as in the right gradient."""
        return rows_left_out.without(result) if self.op.leaves_rows_out else result

    @property
    def is_attention(self) -> bool:
        """Whether the op is an attention."""
        return isinstance(self.op, AttentionOp)

    @cached_property
    def wrong(self) -> Tensor:
        """The vectors (of the last axis) that are off."""
        by_vector = (self.got - self.right).abs().mean(-1)
        return by_vector >= by_vector.max() / FAR_OFF

    def error(self, guess: Tensor) -> float:
        return float((self.got - guess).abs().mean(-1)[self.wrong].mean())


def explain(
    op: Op,
    inputs: Inputs,
    grad_out: Tensor,
    name: str,
    got: Tensor,
    right: Tensor,
    previous: Tensor | None,
) -> str:
    """Say what a wrong gradient looks like. The arguments are as in `diagnose_gradient`."""
    if op.leaves_rows_out:  # rows that are not compared need no explanation
        got = got.masked_fill(~rows_left_out.compared(right).unsqueeze(-1), 0.0)
        right = rows_left_out.without(right)
        previous = None if previous is None else rows_left_out.without(previous)
    bad = ~torch.isfinite(got)
    if bad.any():
        return f"{int(bad.sum())} of {got.numel()} elements are NaN or infinite: {locate(bad)}"
    got, of = got.double(), name.removeprefix("d")
    problem = Problem(op, inputs, grad_out, of, got, right, previous)
    if problem.is_small:
        # Gradients are linear in `grad_out`, so its factor shows in what is right.
        factor = _ratio(right, problem.by(grad_out)) or 1.0
        problem = replace(problem, grad_out=grad_out.double() * factor)
    mistake = next(_by_a_factor(problem), "") or _best(problem)
    return f"{name} {mistake}" if mistake else _where(name, (got - right).abs())


def _by_a_factor(p: Problem) -> Iterator[str]:
    """The gradient is the right one, or an earlier one, times something."""
    if not p.got.any():
        yield "is zero everywhere"
    if not p.right.any():
        return
    known = dict(KNOWN_FACTORS)
    if p.is_attention:
        known[1 / p.scale] = "the softmax scale is missing"
        known[p.scale] = "the softmax scale is applied twice"
    factor = _ratio(p.got, p.right)
    if _leaves(p.got, p.right, factor) < SMALL and abs(factor - 1) > NEAR:
        texts = (text for value, text in known.items() if math.isclose(factor, value, rel_tol=NEAR))
        yield f"is {factor:.4g} times the right one" + "".join(f" ({text})" for text in texts)
    if p.previous is not None and p.previous.any():
        factor = _ratio(p.got, p.previous)
        if _leaves(p.got, p.previous, factor) < SMALL:
            yield "is the gradient of an earlier call, not of this one"


def _best(p: Problem) -> str:
    best, error = None, float("inf")
    end, off = now_s() + TIME_LIMIT_S, p.error(p.right)
    for hypothesis in _hypotheses(p):
        tried = p.error(hypothesis.predict())
        if tried < BETTER * error:
            best, error = hypothesis, tried
        if error <= SURE * off or now_s() > end:
            break
    if best is None or error > EXPLAINS * off:
        return ""
    where = within((p.got - p.right).abs().mean(-1), error)
    return f"{best.text}{where} (MAE {error:.2g} against that hypothesis, {off:.3g} against the op)"


def _hypotheses(p: Problem) -> Iterator[Hypothesis]:
    unwritten = (p.got == 0) & (p.right != 0)
    if unwritten.any() and is_all((p.got - p.right).abs(), unwritten):
        yield Hypothesis(
            f"is zero in {locate(unwritten)}, and right elsewhere",
            lambda: p.right.masked_fill(unwritten, 0.0),
        )
    yield from _permuted(p)
    if not p.is_small:
        return
    known = KNOWN.get(p.op.name)
    for text, gradients in known.variants(p.op, p.inputs) if known else ():
        yield Hypothesis(text, partial(_of_another, p, gradients))
    if p.is_attention:
        yield from _terms(p)
        yield from _left_out(p)
        yield from _scales(p)
        yield from _in_fewer_bits(p)


def _of_another(p: Problem, gradients: Gradients) -> Tensor:
    return p.held(gradients(p.grad_out)[p.of])


def _permuted(p: Problem) -> Iterator[Hypothesis]:
    """Vectors at an index of an axis hold those at another index."""
    for axis in range(1, p.right.dim() - 1):
        size = p.right.shape[axis]
        if 1 < size <= 128:
            got, right = (x.movedim(axis, 0).flatten(1) for x in (p.got, p.right))
            nearest = torch.cdist(got, right, p=1.0).argmin(1)
            if nearest.tolist() != list(range(size)):
                yield Hypothesis(
                    f"has axis {axis} permuted, or partly overwritten: index 0 to {size - 1} hold "
                    f"what belongs to {', '.join(map(str, nearest.tolist()[:8]))}"
                    + (", ..." if size > 8 else ""),
                    partial(p.right.index_select, axis, nearest),
                )


def _terms(p: Problem) -> Iterator[Hypothesis]:
    """ds = p (do v^T - rowsum(do o)) scale lacks its second term.

    A sum of p over keys is the op itself with other values; one over queries is its gradient by v.
    """
    delta = (p.grad_out * p.held(p.op.oracle(p.inputs))).sum(-1, keepdim=True)
    text = "lacks the term rowsum(do o)"
    with_keys = p.inputs.replaced({"v": p.inputs.tensors["k"]})
    if p.of == "q":
        yield Hypothesis(text, lambda: p.right + p.scale * delta * p.op.oracle(with_keys))
    elif p.of == "k":
        q = p.inputs.tensors["q"].double()
        yield Hypothesis(
            text, lambda: p.right + p.scale * p.op.gradients(with_keys, delta * q)["v"]
        )


def _left_out(p: Problem) -> Iterator[Hypothesis]:
    """The sums over queries, or over the heads of a group, lack some."""
    if p.of == "q":
        return
    q, group, head = p.inputs.tensors["q"], p.group, p.head_in_group
    if group > 1:
        for text, kept in (
            ("sums over the first query head of each group only", head == 0),
            ("sums over the last query head of each group only", head == group - 1),
            ("leaves out the last query head of each group", head != group - 1),
            ("leaves out the first query head of each group", head != 0),
        ):
            yield Hypothesis(text, partial(p.by, p.grad_out * kept))
    count = q.shape[1]
    place = torch.arange(count, device=q.device).view(-1, *[1] * (q.dim() - 2))
    yield Hypothesis("leaves out the last query", partial(p.by, p.grad_out * (place < count - 1)))
    yield Hypothesis("leaves out the first query", partial(p.by, p.grad_out * (place > 0)))
    for tile in TILES:
        if count > tile and count % tile:
            text = f"leaves out the last {count % tile} queries, which fill no tile of {tile}"
            some = place < count // tile * tile
            yield Hypothesis(text, partial(p.by, p.grad_out * some))


def _scales(p: Problem) -> Iterator[Hypothesis]:
    """The weights are computed again with another scale."""
    for text, scale in (
        ("1, that is, none", 1.0),
        ("the right one without the factor log2(e) that exp2 needs", p.scale * math.log(2)),
        ("the right one times log2(e), which exp does not need", p.scale / math.log(2)),
        ("the square of the right one, applied twice", p.scale**2),
    ):
        inputs = p.inputs.replaced(sm_scale=scale)
        yield Hypothesis(f"uses as softmax scale {text}", partial(p.by, p.grad_out, inputs))


def _in_fewer_bits(p: Problem) -> Iterator[Hypothesis]:
    """Sums over queries, a tile at a time, or the result itself, are rounded."""
    q = p.inputs.tensors["q"]
    for name, dtype in (("bfloat16", torch.bfloat16), ("float16", torch.float16)):
        if q.dtype == torch.float32:
            yield Hypothesis(f"is rounded to {name}", p.right.to(dtype).double)
            narrow = p.grad_out.to(dtype).double()
            text = f"takes the gradient of the output rounded to {name}"
            yield Hypothesis(text, partial(p.by, narrow))
        if p.of == "q":
            continue
        for tile in (*TILES[:4], q.shape[1]):
            queries = f"a tile of {tile} queries at a time" if tile < q.shape[1] else ""
            for heads, text in ((p.group, "a head of the group after the other"), (1, "")):
                parts = heads * -(-q.shape[1] // tile)
                if parts > 1 and parts * p.grad_out.numel() <= MOST_PARTS:
                    yield Hypothesis(
                        f"is summed in {name}, " + ", ".join(filter(None, (text, queries))),
                        partial(_summed, p, heads, tile, dtype),
                    )


def _summed(p: Problem, heads: int, tile: int, dtype: torch.dtype) -> Tensor:
    """Sum what each tile of queries adds, each of `heads` heads by itself."""
    total = torch.zeros_like(p.right)
    for head in range(heads):
        of_head = p.grad_out * (p.head_in_group % heads == head)
        for start in range(0, of_head.shape[1], tile):
            some = torch.zeros_like(of_head)
            some[:, start : start + tile] = of_head[:, start : start + tile]
            total = (total + p.by(some)).to(dtype).double()
    return total


def _ratio(x: Tensor, of: Tensor) -> float:
    square = float(of.square().sum())
    return float((x * of).sum()) / square if square else 0.0


def _leaves(got: Tensor, guess: Tensor, factor: float) -> float:
    return float((got - factor * guess).norm() / (got.norm() or 1.0))


def _where(name: str, off: Tensor) -> str:
    return f"the largest errors of {name} are in {locate(off >= off.max() / FAR_OFF)}"

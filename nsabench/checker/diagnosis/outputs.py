"""Diagnosis of a wrong output: mistakes of any op, and of any attention on q, k and v."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from nsabench.checker.diagnosis import keys, search
from nsabench.checker.diagnosis.evidence import Evidence, Known, choose_evenly, unite
from nsabench.checker.diagnosis.known import KNOWN, NOTHING, mistake_scale
from nsabench.checker.diagnosis.search import Hypothesis, locate
from nsabench.ops import Inputs, Op

UNWRITTEN = "NaN is also what the bench leaves where a kernel does not write"
PLACES = 64  # at which heads are told apart
MOST_PLACES = 1 << 26  # of V's elements that are looked up one by one


def diagnose(op: Op, inputs: Inputs, output: Tensor, previous: Tensor | None = None) -> str:
    """Say in one line what a wrong output looks like: the mistake, or else where it is off.

    previous: what the call before this one should have returned, if it had other inputs.
    """
    output, oracle = search.blank_left_out(op, output, op.oracle(inputs))
    if text := search.locate_not_finite(output):
        return text + (f"; {UNWRITTEN}" if output.isnan().any() else "")
    known = KNOWN.get(op.name, NOTHING)
    evidence = Evidence(op, inputs, output, oracle, previous, known.spans)
    off = evidence.mae(evidence.oracle)
    best, error = search.find_best(find_hypotheses(evidence, known), evidence.mae, off)
    if text := search.explain(best, error, off, evidence.off.mean(-1)):
        return text
    where = search.locate_worst(evidence.off)
    return f"no hypothesis explains it; the largest errors are in {where}"


def find_hypotheses(evidence: Evidence, known: Known) -> Iterator[Hypothesis]:
    """Yield every hypothesis, likely ones first."""
    yield from _find_remembered(evidence)
    yield from _find_straight_line(evidence)
    yield from _find_known(evidence, known)
    yield from _find_known_scale(evidence)
    yield from _find_swapped(evidence)
    yield from _find_heads(evidence)
    yield from _find_layouts(evidence)
    yield from _find_rounded(evidence)


def _find_known(evidence: Evidence, known: Known) -> Iterator[Hypothesis]:
    for text, other in known.inputs(evidence.full):
        yield Hypothesis(text, partial(evidence.compute, other))
    if evidence.selection is not None:
        for text, found in known.keys(evidence.full, evidence.rows):
            if isinstance(found, Tensor):
                found = unite(found.long(), evidence.selection.k.shape[2])
            yield Hypothesis(text, partial(evidence.attend, found))
        yield from keys.find_in_selection(evidence, evidence.selection)


def _find_remembered(e: Evidence) -> Iterator[Hypothesis]:
    # One row that is zero for another reason may be the only one that is far off.
    if search.is_all(e.off, e.whole_output == 0):
        yield Hypothesis("is zero everywhere", lambda: torch.zeros_like(e.oracle))
    previous = e.previous
    if previous is not None:
        yield Hypothesis("is the output of an earlier call, not of this one", lambda: previous)
    unwritten = search.zeros_explain(e.whole_output, e.whole, e.off)
    if unwritten is not None and not unwritten.all():
        yield Hypothesis(
            f"is zero in {locate(unwritten)}, and right elsewhere",
            lambda: e.oracle.masked_fill(e.output == 0, 0.0),
        )


def _find_known_scale(e: Evidence) -> Iterator[Hypothesis]:
    for text, other in mistake_scale(e.inputs, e.oracle.shape[-1]):
        yield Hypothesis(text, partial(e.op.oracle, other))


def _find_swapped(e: Evidence) -> Iterator[Hypothesis]:
    if not {"k", "v"} <= e.inputs.tensors.keys():
        return
    k, v = e.inputs.tensors["k"], e.inputs.tensors["v"]
    if k.shape == v.shape:
        yield e.suppose("has K and V swapped", {"k": v, "v": k})


def _find_heads(e: Evidence) -> Iterator[Hypothesis]:
    """Find the head of the oracle that each head of the output holds. Heads are axis -2."""
    if "q" not in e.inputs.tensors or e.whole.dim() < 2 or e.whole.shape[-2] == 1:
        return
    heads = e.whole.shape[-2]
    at = tuple(choose_evenly(e.wrong.any(-1).nonzero(), PLACES).unbind(-1))
    heads_out = e.whole_output[at].double().transpose(0, 1).flatten(1)
    right = e.whole[at].transpose(0, 1).flatten(1)
    nearest = torch.cdist(heads_out, right, p=1.0).argmin(1).tolist()
    if nearest == list(range(heads)):
        return
    moved = [f"head {i} holds head {j}" for i, j in enumerate(nearest) if i != j]
    some = ", ".join(moved[:3]) + (", ..." if len(moved) > 3 else "")
    alike = len(set(nearest)) == 1
    text = f"holds head {nearest[0]} in every head" if alike else f"has heads permuted ({some})"
    yield Hypothesis(text, lambda: e.take(e.whole[..., nearest, :]))


def _find_layouts(e: Evidence) -> Iterator[Hypothesis]:
    names = [n for n in ("q", "k", "v") if n in e.full.tensors and e.full.tensors[n].dim() > 2]
    for which in [(n,) for n in names] + ([("k", "v")] if {"k", "v"} <= set(names) else []):
        tensors = {n: e.full.tensors[n] for n in which}
        for axis in range(min(t.dim() for t in tensors.values()) - 1):
            changed = {n: _swap_axes(t, axis) for n, t in tensors.items()}
            if all(t.shape[axis] > 1 and t.shape[axis + 1] > 1 for t in tensors.values()):
                yield Hypothesis(
                    f"reads {_join(which)} as if {'its' if len(which) == 1 else 'their'} axes "
                    f"{axis} and {axis + 1} were stored the other way round",
                    partial(e.compute, e.full.replaced(changed)),
                )
    for axis in range(e.whole.dim() - 1):
        if e.whole.shape[axis] > 1 and e.whole.shape[axis + 1] > 1:
            axes = f"axes {axis} and {axis + 1}"
            text = f"writes its output as if {axes} were stored the other way round"
            swapped = e.whole.transpose(axis, axis + 1)
            yield Hypothesis(text, partial(e.take, swapped))
    if {"k", "v"} <= set(names):
        k, v = e.full.tensors["k"], e.full.tensors["v"]
        alike = k.shape[:-1] == v.shape[:-1] and k.shape[-1] != v.shape[-1]
        if alike and v.numel() <= MOST_PLACES:
            for text, kept in (("", 0), (", but for the first", 1), (", but for the first two", 2)):
                if kept < v.dim() - 1:
                    text = f"reads V with the strides of K{text}"
                    wide = e.full.replaced({"v": _read_as_wide(v, k, kept)})
                    yield Hypothesis(text, partial(e.compute, wide))


def _join(names: tuple[str, ...]) -> str:
    return " and ".join(", ".join(names).upper().rsplit(", ", 1))


def _swap_axes(x: Tensor, axis: int) -> Tensor:
    shape = list(x.shape)
    shape[axis], shape[axis + 1] = shape[axis + 1], shape[axis]
    return x.reshape(shape).transpose(axis, axis + 1)


def _read_as_wide(v: Tensor, k: Tensor, kept: int) -> Tensor:
    """Read v with the strides of k, except for its first `kept` axes, within its memory."""
    strides = (*v.contiguous().stride()[:kept], *k.contiguous().stride()[kept:])
    last = sum((size - 1) * stride for size, stride in zip(v.shape, strides, strict=True))
    flat = v.flatten()
    beyond = flat[-1:].expand(max(last + 1 - len(flat), 0))
    return torch.cat([flat, beyond]).as_strided(v.shape, strides)


def _find_rounded(e: Evidence) -> Iterator[Hypothesis]:
    names = [n for n in ("q", "k", "v") if n in e.inputs.tensors]
    if len(names) < 3 or e.inputs.tensors["q"].dtype != torch.float32:
        return
    for form, rounded in (("TF32", _round_to_tf32), ("bfloat16", lambda x: x.bfloat16().float())):
        for which in (("q", "k"), ("v",), ("q", "k", "v")):
            changed = {n: rounded(e.inputs.tensors[n]) for n in which}
            yield e.suppose(f"rounds {_join(which)} to {form}", changed)


def _round_to_tf32(x: Tensor) -> Tensor:
    """Round float32 to ten bits of mantissa, to nearest, ties to even."""
    bits = x.view(torch.int32)
    odd = (bits >> 13) & 1
    return ((bits + 0xFFF + odd) & ~0x1FFF).view(torch.float32)


def _find_straight_line(e: Evidence) -> Iterator[Hypothesis]:
    offset = float((e.output - e.oracle)[e.marked].mean())
    yield Hypothesis(f"is off by a constant {offset:.3g}", lambda: e.oracle + offset)
    factor = search.find_factor(e.output[e.marked], e.oracle[e.marked])
    if factor:  # what is zero has a hypothesis of its own
        digits = 4 if abs(factor - 1) > 1e-3 else 7  # "1 times" would say nothing
        yield Hypothesis(f"is {factor:.{digits}g} times the right one", lambda: e.oracle * factor)

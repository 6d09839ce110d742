"""Diagnose a wrong output by mistakes of any op, of attention, and of its op (`known.py`)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from nsabench.checker.diagnosis import search, weights
from nsabench.checker.diagnosis.evidence import Evidence, Known, choose_evenly, unite
from nsabench.checker.diagnosis.known import KNOWN, NOTHING, mistake_scale
from nsabench.checker.diagnosis.search import TIME_LIMIT_S, Diagnosis, Hypothesis, mistake
from nsabench.ops import Inputs, Op

PLACES = 64  # at most this many rows are compared to tell heads apart
MOST_PLACES = 1 << 26  # reading a V of more elements with the strides of K would take too long


def diagnose(
    op: Op,
    inputs: Inputs,
    output: Tensor,
    previous: Tensor | None = None,
    time_limit_s: float = TIME_LIMIT_S,
) -> Diagnosis:
    """Return the known mistake that explains a wrong output, or else where the output is off.

    previous: the right output of the previous call, if that call had other inputs.
    """
    output, oracle = search.blank_left_out(op, output, op.oracle(inputs))
    if not_finite := search.locate_not_finite(output):
        return not_finite
    known = KNOWN.get(op.name, NOTHING)
    evidence = Evidence(op, inputs, output, oracle, previous, known.spans)
    return search.explain(
        find_hypotheses(evidence, known),
        evidence.mae,
        evidence.oracle,
        evidence.off.mean(-1),
        time_limit_s,
    ) or search.locate_worst(evidence.off)


def find_hypotheses(evidence: Evidence, known: Known) -> Iterator[Hypothesis]:
    yield from _find_written(evidence)
    yield from _find_straight_line(evidence)
    yield from _find_known(evidence, known)
    yield from _find_heads(evidence)
    yield from _find_layouts(evidence)
    yield from _find_rounded(evidence)


def _find_written(e: Evidence) -> Iterator[Hypothesis]:
    # The rows that `Evidence` keeps may be zero for another reason, so all rows are tested.
    if search.is_all(e.off, e.whole_output == 0):
        yield mistake("all-zero"), lambda: torch.zeros_like(e.oracle)
    previous = e.previous
    if previous is not None:
        yield mistake("earlier-call", result="output"), lambda: previous
    unwritten = search.find_unwritten(e.whole_output, e.whole, e.off)
    if unwritten is not None and not unwritten.all():
        diagnosis = mistake("not-written", where=search.locate(unwritten))
        yield diagnosis, lambda: e.oracle.masked_fill(e.output == 0, 0.0)


def _find_straight_line(e: Evidence) -> Iterator[Hypothesis]:
    offset = float((e.output - e.oracle)[e.marked].mean())
    yield mistake("constant-offset", offset=offset), lambda: e.oracle + offset
    factor = search.find_factor(e.output[e.marked], e.oracle[e.marked])
    if factor:  # a zero output has a hypothesis of its own
        digits = 4 if abs(factor - 1) > 1e-3 else 7  # four digits might be "1"
        yield mistake("constant-factor", factor=f"{factor:.{digits}g}"), lambda: e.oracle * factor


def _find_known(e: Evidence, known: Known) -> Iterator[Hypothesis]:
    for diagnosis, other in mistake_scale(e.inputs, e.oracle.shape[-1]):
        yield diagnosis, partial(e.op.oracle, other)
    for diagnosis, other in known.inputs(e.full):
        yield diagnosis, partial(e.compute, other)
    if e.selection is not None:
        for diagnosis, keys in known.keys(e.full, e.rows):
            if isinstance(keys, Tensor):
                keys = unite(keys.long(), e.selection.k.shape[2])
            yield diagnosis, partial(e.attend, keys)
        yield from weights.find_in_selection(e, e.selection)


def _find_heads(e: Evidence) -> Iterator[Hypothesis]:
    if "q" not in e.inputs.tensors or e.whole.dim() < 2 or e.whole.shape[-2] == 1:
        return
    at = tuple(choose_evenly(e.wrong.any(-1).nonzero(), PLACES).unbind(-1))  # heads are axis -2
    heads_out = e.whole_output[at].double().transpose(0, 1).flatten(1)
    right = e.whole[at].transpose(0, 1).flatten(1)
    nearest = torch.cdist(heads_out, right, p=1.0).argmin(1).tolist()
    moved = [f"head {i} holds head {j}" for i, j in enumerate(nearest) if i != j]
    if not moved:
        return
    permuted = mistake("heads-permuted", moved=", ".join(moved[:3]))
    everywhere = mistake("head-everywhere", head=nearest[0])
    diagnosis = everywhere if len(set(nearest)) == 1 else permuted
    yield diagnosis, lambda: e.take(e.whole[..., nearest, :])


def _find_layouts(e: Evidence) -> Iterator[Hypothesis]:
    named = {n: x for n, x in e.full.tensors.items() if n in ("q", "k", "v")}
    names = [n for n, x in named.items() if x.dim() > 2]
    for which in [(n,) for n in names] + [("k", "v")] * ({"k", "v"} <= set(names)):
        tensors = {n: named[n] for n in which}
        for axis in range(min(x.dim() for x in tensors.values()) - 1):
            if all(x.shape[axis] > 1 and x.shape[axis + 1] > 1 for x in tensors.values()):
                changed = {n: _swap_axes(x, axis) for n, x in tensors.items()}
                axes = {"tensors": _join(which), "axis": axis, "next": axis + 1}
                swapped = e.full.replaced(changed)
                yield mistake("input-axes-swapped", **axes), partial(e.compute, swapped)
    for axis in range(e.whole.dim() - 1):
        if e.whole.shape[axis] > 1 and e.whole.shape[axis + 1] > 1:
            diagnosis = mistake("output-axes-swapped", axis=axis, next=axis + 1)
            yield diagnosis, partial(e.take, e.whole.transpose(axis, axis + 1))
    if not {"k", "v"} <= named.keys():
        return
    k, v = named["k"], named["v"]
    if k.shape == v.shape:
        swapped = e.inputs.replaced({"k": e.inputs.tensors["v"], "v": e.inputs.tensors["k"]})
        yield mistake("k-v-swapped"), partial(e.op.oracle, swapped)
    elif k.shape[:-1] == v.shape[:-1] and v.dim() > 2 and v.numel() <= MOST_PLACES:
        for kept in range(min(3, v.dim() - 1)):
            wide = e.full.replaced({"v": _read_as_wide(v, k, kept)})
            yield mistake("v-strides-of-k", axes=f"from dimension {kept}"), partial(e.compute, wide)


def _join(names: tuple[str, ...]) -> str:
    return " and ".join(", ".join(names).upper().rsplit(", ", 1))


def _swap_axes(x: Tensor, axis: int) -> Tensor:
    shape = list(x.shape)
    shape[axis], shape[axis + 1] = shape[axis + 1], shape[axis]
    return x.reshape(shape).transpose(axis, axis + 1)


def _read_as_wide(v: Tensor, k: Tensor, kept: int) -> Tensor:
    strides = (*v.contiguous().stride()[:kept], *k.contiguous().stride()[kept:])
    last = sum((size - 1) * stride for size, stride in zip(v.shape, strides, strict=True))
    flat = v.flatten()
    beyond = flat[-1:].expand(max(last + 1 - len(flat), 0))
    return torch.cat([flat, beyond]).as_strided(v.shape, strides)


def _find_rounded(e: Evidence) -> Iterator[Hypothesis]:
    t = e.inputs.tensors
    if not {"q", "k", "v"} <= t.keys() or t["q"].dtype != torch.float32:
        return
    for form, rounded in (("TF32", _round_to_tf32), ("bfloat16", lambda x: x.bfloat16().float())):
        for which in (("q", "k"), ("v",), ("q", "k", "v")):
            other = e.inputs.replaced({n: rounded(t[n]) for n in which})
            diagnosis = mistake("inputs-rounded", tensors=_join(which), format=form)
            yield diagnosis, partial(e.op.oracle, other)


def _round_to_tf32(x: Tensor) -> Tensor:
    """Round float32 to ten bits of mantissa, to nearest, ties to even."""
    bits = x.view(torch.int32)
    odd = (bits >> 13) & 1
    return ((bits + 0xFFF + odd) & ~0x1FFF).view(torch.float32)

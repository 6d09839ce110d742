"""Mistakes that any op can make, and some of any attention, told by its q, k, v and scale."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from nsabench.checker.diagnosis.evidence import Evidence, Hypothesis, evenly
from nsabench.checker.diagnosis.location import is_all, locate
from nsabench.checker.diagnosis.selected import coordinates

PLACES = 64  # at which heads are told apart
# Factors of the softmax scale that are tried, and how closely the best is then refined.
FACTORS_APART = 2**0.5
FACTORS = tuple(FACTORS_APART**n for n in range(-6, 7))
SECTIONS, GOLDEN, NO_OTHER_SCALE = 10, (5**0.5 - 1) / 2, 0.005
MOST_PLACES = 1 << 26  # of V's elements that are looked up one by one


def at_hand(evidence: Evidence) -> Iterator[Hypothesis]:
    """Yield what shows beside the right output and the one before, without computing anything."""
    yield from _remembered(evidence)
    yield from _straight_line(evidence)


def hypotheses(evidence: Evidence) -> Iterator[Hypothesis]:
    """Yield every other hypothesis for this evidence, likely ones first."""
    yield from _scales(evidence)
    yield from _other_rows(evidence)
    yield from _swapped(evidence)
    yield from _heads(evidence)
    yield from _layouts(evidence)
    yield from _fewer_dimensions(evidence)
    yield from _rounded(evidence)
    yield from _any_scale(evidence)


def _remembered(e: Evidence) -> Iterator[Hypothesis]:
    # One row that is zero for another reason may be the only one that is far off.
    if is_all(e.off, e.whole_output == 0):
        yield Hypothesis("is zero everywhere", lambda: torch.zeros_like(e.oracle))
    previous = e.previous
    if previous is not None:
        yield Hypothesis("is the output of an earlier call, not of this one", lambda: previous)
    unwritten = (e.whole_output == 0) & (e.whole != 0)
    if unwritten.any() and not unwritten.all() and is_all(e.off, unwritten):
        yield Hypothesis(
            f"is zero in {locate(unwritten)}, and right elsewhere",
            lambda: e.oracle.masked_fill(e.output == 0, 0.0),
        )


def _scales(e: Evidence) -> Iterator[Hypothesis]:
    if "sm_scale" not in e.inputs.options or "q" not in e.inputs.tensors:
        return
    right = e.inputs.options["sm_scale"]
    dim, dim_v = e.inputs.tensors["q"].shape[-1], e.oracle.shape[-1]
    twice = ""
    if math.isclose(right**2, 1 / dim, rel_tol=1e-6):
        twice = ", the square of the right one, which is then applied twice"
    wrong = {
        "1, that is, none": 1.0,
        f"1/D = 1/{dim}" + twice: 1 / dim,
        f"1/sqrt(Dv) = {dim_v**-0.5:.4g}": dim_v**-0.5,
        "the right one without the factor log2(e) that exp2 needs": right / math.log2(math.e),
        "the right one times log2(e), which exp does not need": right * math.log2(math.e),
        "the square of the right one, applied twice": right**2,
    }
    for text, scale in wrong.items():
        if not math.isclose(scale, right, rel_tol=1e-6):
            inputs = e.inputs.replaced(sm_scale=scale)
            yield Hypothesis(f"uses as softmax scale {text}", partial(e.op.oracle, inputs))


def _any_scale(e: Evidence) -> Iterator[Hypothesis]:
    """Search the nearest scale by golden sections."""
    if "sm_scale" not in e.inputs.options or not (e.select or e.independent):
        return  # the full problem would be solved again and again
    right = e.inputs.options["sm_scale"]

    def off(factor: float) -> float:
        return e.mae(e.op.oracle(e.inputs.replaced(sm_scale=right * factor)))

    factor = min(FACTORS, key=off)
    low, high = factor / FACTORS_APART, factor * FACTORS_APART
    for _ in range(SECTIONS):
        one, other = high - (high - low) * GOLDEN, low + (high - low) * GOLDEN
        low, high = (low, other) if off(one) < off(other) else (one, high)
    factor = (low + high) / 2
    if abs(factor - 1) > NO_OTHER_SCALE:
        inputs = e.inputs.replaced(sm_scale=right * factor)
        yield Hypothesis(
            f"uses as softmax scale {factor:.3g} times the right one", partial(e.op.oracle, inputs)
        )


def _other_rows(e: Evidence) -> Iterator[Hypothesis]:
    for where, offset in (("next", 1), ("previous", -1)):
        other = e.of_rows(offset)
        if other is None:
            return
        text = f"holds in each row the result of the {where} one"
        yield Hypothesis(text, partial(e.op.oracle, other))
        others = list(e.inputs.tensors)[1:]
        for name in ("k", "v") if {"k", "v"} <= set(others) else others:
            if other.tensors[name].shape != e.inputs.tensors[name].shape:
                continue  # of packed rows, each has keys of its own number
            mixed = e.inputs.replaced({name: other.tensors[name]})
            text = f"takes {name.upper()} of the {where} row"
            yield Hypothesis(text, partial(e.op.oracle, mixed))


def _swapped(e: Evidence) -> Iterator[Hypothesis]:
    if not {"k", "v"} <= e.inputs.tensors.keys():
        return
    k, v = e.inputs.tensors["k"], e.inputs.tensors["v"]
    if k.shape == v.shape:
        swapped = e.inputs.replaced({"k": v, "v": k})
        yield Hypothesis("has K and V swapped", partial(e.op.oracle, swapped))


def _heads(e: Evidence) -> Iterator[Hypothesis]:
    """Find the head of the oracle that each head of the output holds. Heads are axis -2."""
    if "q" not in e.inputs.tensors or e.whole.dim() < 2 or e.whole.shape[-2] == 1:
        return
    heads = e.whole.shape[-2]
    at = tuple(evenly(e.wrong.any(-1).nonzero(), PLACES).unbind(-1))
    heads_out = e.whole_output[at].double().transpose(0, 1).flatten(1)
    right = e.whole[at].transpose(0, 1).flatten(1)
    nearest = torch.cdist(heads_out, right, p=1.0).argmin(1).tolist()
    if nearest == list(range(heads)):
        return
    moved = [f"head {i} holds head {j}" for i, j in enumerate(nearest) if i != j]
    some = ", ".join(moved[:3]) + (", ..." if len(moved) > 3 else "")
    alike = len(set(nearest)) == 1
    text = f"holds head {nearest[0]} in every head" if alike else f"has heads permuted ({some})"
    yield Hypothesis(text, partial(_of_heads, e, torch.tensor(nearest, device=e.whole.device)))


def _of_heads(e: Evidence, nearest: Tensor) -> Tensor:
    """Take each vector of the right output from another head."""
    head = e.vectors % len(nearest)
    vectors = e.vectors - head + nearest[head]
    return e.whole.flatten(0, -2)[vectors].reshape(e.oracle.shape)


def _layouts(e: Evidence) -> Iterator[Hypothesis]:
    """Two neighbouring axes are swapped in memory, or V is read as if it were as wide as K."""
    names = [n for n in ("q", "k", "v") if n in e.full.tensors and e.full.tensors[n].dim() > 2]
    for which in [(n,) for n in names] + ([("k", "v")] if {"k", "v"} <= set(names) else []):
        tensors = {n: e.full.tensors[n] for n in which}
        for axis in range(min(t.dim() for t in tensors.values()) - 1):
            changed = {n: _swap(t, axis) for n, t in tensors.items()}
            if all(t.shape[axis] > 1 and t.shape[axis + 1] > 1 for t in tensors.values()):
                yield Hypothesis(
                    f"reads {_list(which)} as if {'its' if len(which) == 1 else 'their'} axes "
                    f"{axis} and {axis + 1} were stored the other way round",
                    partial(e.of_inputs, e.full.replaced(changed)),
                )
    for axis in range(e.whole.dim() - 1):
        if e.whole.shape[axis] > 1 and e.whole.shape[axis + 1] > 1:
            axes = f"axes {axis} and {axis + 1}"
            text = f"writes its output as if {axes} were stored the other way round"
            yield Hypothesis(text, partial(_written_swapped, e, axis))
    if {"k", "v"} <= set(names):
        k, v = e.full.tensors["k"], e.full.tensors["v"]
        alike = k.shape[:-1] == v.shape[:-1] and k.shape[-1] != v.shape[-1]
        if alike and v.numel() <= MOST_PLACES:
            for text, kept in (("", 0), (", but for the first", 1), (", but for the first two", 2)):
                if kept < v.dim() - 1:
                    text = f"reads V with the strides of K{text}"
                    yield Hypothesis(text, partial(_read_as_wide, e, kept))


def _written_swapped(e: Evidence, axis: int) -> Tensor:
    width = e.whole.shape[-1]
    places = e.vectors.unsqueeze(1) * width + torch.arange(width, device=e.whole.device)
    shape = list(e.whole.shape)
    shape[axis], shape[axis + 1] = shape[axis + 1], shape[axis]
    at = list(coordinates(places, shape))
    at[axis], at[axis + 1] = at[axis + 1], at[axis]
    return e.whole[tuple(at)].reshape(e.oracle.shape)


def _read_as_wide(e: Evidence, kept: int) -> Tensor:
    k, v = e.full.tensors["k"], e.full.tensors["v"]
    return e.of_inputs(e.full.replaced({"v": _as_wide(v, k, kept)}))


def _list(names: tuple[str, ...]) -> str:
    upper = [name.upper() for name in names]
    return " and ".join([", ".join(upper[:-1]), upper[-1]]) if len(upper) > 1 else upper[0]


def _swap(x: Tensor, axis: int) -> Tensor:
    shape = list(x.shape)
    shape[axis], shape[axis + 1] = shape[axis + 1], shape[axis]
    return x.reshape(shape).transpose(axis, axis + 1)


def _as_wide(v: Tensor, k: Tensor, kept: int) -> Tensor:
    """Read v with the strides of k, except for its first `kept` axes, within its memory."""
    v, k = v.contiguous(), k.contiguous()
    places = torch.zeros((), dtype=torch.int64, device=v.device)
    for axis, size in enumerate(v.shape):
        stride = (v if axis < kept else k).stride(axis)
        along = torch.arange(size, device=v.device) * stride
        places = places.unsqueeze(-1) + along
    return v.reshape(-1)[places.clamp(max=v.numel() - 1)]


def _fewer_dimensions(e: Evidence) -> Iterator[Hypothesis]:
    """Head dims are cut off at a size that a kernel has."""
    if not {"q", "k"} <= e.inputs.tensors.keys():
        return
    q = e.inputs.tensors["q"]
    dim = q.shape[-1]
    for some in (16, 32, 64, 128, 256):
        if some < dim:
            cut = q.clone()
            cut[..., some:] = 0
            text = f"uses the first {some} of {dim} dimensions of Q and K"
            yield Hypothesis(text, partial(e.op.oracle, e.inputs.replaced({"q": cut})))


def _rounded(e: Evidence) -> Iterator[Hypothesis]:
    """Operands of float32 are rounded to fewer bits."""
    names = [n for n in ("q", "k", "v") if n in e.inputs.tensors]
    if len(names) < 3 or e.inputs.tensors["q"].dtype != torch.float32:
        return
    for form, rounded in (("TF32", _tf32), ("bfloat16", _bfloat16)):
        for which in (("q", "k"), ("v",), ("q", "k", "v")):
            changed = {n: rounded(e.inputs.tensors[n]) for n in which}
            text = f"rounds {_list(which)} to {form}"
            yield Hypothesis(text, partial(e.op.oracle, e.inputs.replaced(changed)))


def _tf32(x: Tensor) -> Tensor:
    """Round float32 to ten bits of mantissa, to nearest, ties to even."""
    bits = x.view(torch.int32)
    odd = (bits >> 13) & 1
    return ((bits + 0xFFF + odd) & ~0x1FFF).view(torch.float32)


def _bfloat16(x: Tensor) -> Tensor:
    return x.bfloat16().float()


def _straight_line(e: Evidence) -> Iterator[Hypothesis]:
    """The output is off by a constant, or by a constant factor."""
    offset = float((e.output - e.oracle)[e.marked].mean())
    yield Hypothesis(f"is off by a constant {offset:.3g}", lambda: e.oracle + offset)
    factor = _factor(e.output[e.marked], e.oracle[e.marked])
    if factor:  # what is zero has a hypothesis of its own
        digits = 4 if abs(factor - 1) > 1e-3 else 7  # "1 times" would say nothing
        yield Hypothesis(f"is {factor:.{digits}g} times the right one", lambda: e.oracle * factor)


def _factor(output: Tensor, oracle: Tensor) -> float:
    square = float((oracle * oracle).sum())
    return float((output * oracle).sum()) / square if square else 0.0

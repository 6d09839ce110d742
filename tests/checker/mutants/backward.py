"""Mutants of the gradients of ops that have a backward."""

import math

import torch

from tests.checker.mutants import bands, selections
from tests.checker.mutants.kernel import RIGHT_BACKWARD, sum_in_bfloat16, sum_of_some
from tests.checker.mutants.mutant import broken_inputs, broken_outputs, broken_steps, case, on, put

OF_SPANS = {"B": 2, "S": 6, "G": 2, "H": 3, "D": 64, "Dv": 32, "S_kv": 150, "n_spans": 5, "L": 60}
OF_PACKED = {"B": 1, "T": 300, "HQ": 3, "H": 3, "D": 32, "Dv": 32, "S": 3}
OF_LONG = {"B": 1, "T": 2048, "HQ": 1, "H": 1, "D": 32, "Dv": 32}
SPANS = case(selections.RANGES, "float16", "mixed", "backward", **OF_SPANS)
BLOCKS = case(selections.BLOCKS, "bfloat16", "random", "backward", **selections.CHOSEN)
EMPTY = case(selections.BLOCKS, "float16", "empty_rows", "backward", **selections.CHOSEN)
PACKED = case(selections.BLOCKS, "bfloat16", "packed", "backward", **OF_PACKED)
WINDOW = case(bands.WINDOW, "bfloat16", "dense", "backward", window=64, **bands.EDGE)
EXACT = case(bands.WINDOW, "float32", "dense", "backward", window=65, **bands.EDGE)
KEYS = case(bands.COMPRESSED, "bfloat16", "dense", "backward", **bands.EDGE, **bands.SIZES)
# Few queries see late keys, so the gradients of these keys are smaller than a typical row.
LONG = case(bands.COMPRESSED, "bfloat16", "dense", "backward", **OF_LONG, **bands.SIZES)


def changed(x, change):
    """Return the same tensor, whose gradient `change` changes."""
    same = x.view_as(x)
    if same.requires_grad:
        same.register_hook(change)
    return same


def gradient(name, change):
    """Return a change of the gradient of an argument."""
    return on(name, lambda x: changed(x, change))


def without(begin):
    """Return a change of a gradient to 0 from an index of axis 1."""

    def forget(grad):
        grad = grad.clone()
        grad[:, begin:] = 0
        return grad

    return forget


def one_nan(grad):
    grad = grad.clone()
    grad[1, 0, 7, 3] = torch.nan
    return grad


def rounded(grad):
    return grad.half().float()


def through_bfloat16(out, x):
    return changed(out, lambda grad: grad.bfloat16().float())


def of_the_call_before():
    before = []

    def stale(grad):
        before.append(grad.clone())
        return before[max(len(before) - 2, 0)]

    return stale


def added_to_those_before():
    total = []

    def add(grad):
        total.append(grad + total[-1] if total else grad)
        return total[-1].clone()

    return add


class Lost(torch.autograd.Function):
    """Set the last row of an output to zero, and pass its gradient on unchanged."""

    @staticmethod
    def forward(ctx, out):
        out = out.clone()
        out[-1, -1, -1] = 0
        return out

    @staticmethod
    def backward(ctx, grad):
        return grad


def nothing(self, do, out):
    return torch.zeros_like(do[..., :1])


def unscaled(self, ds, k, scale):
    return ds @ k


def log2e_extra(self, ds, k, scale):
    """Differentiate exp2(s log2(e)) with the factor log2(e) but without the factor log(2)."""
    return (ds @ k) * scale * math.log2(math.e)


def scaled_twice(self, ds, q, scale):
    return self.over_queries(ds, q) * scale * scale


def minus(self, ds, q, scale):
    return -self.over_queries(ds, q) * scale


def twice(self, p, do):
    return self.over_queries(p, do) * 2


def summed(over_queries):
    return RIGHT_BACKWARD.changed(over_queries=over_queries)


right = RIGHT_BACKWARD.changed
broken_steps(
    (SPANS, "rowsum(do o) is not subtracted", "delta-missing", right(delta=nothing)),
    (BLOCKS, "nor for the keys", "delta-missing", right(delta_for_keys=nothing)),
    (BLOCKS, "dq is not scaled", "gradient-unscaled", right(dq=unscaled)),
    (WINDOW, "dk is scaled twice", "gradient-scaled-twice", right(dk=scaled_twice)),
    (KEYS, "exp2 is differentiated as exp", "log2-twice", right(dq=log2e_extra)),
    (SPANS, "a minus is lost", "sign", right(dk=minus)),
    (KEYS, "two programs add the same dv", "twice", right(dv=twice)),
    (BLOCKS, "one head of a group", "query-head-only", summed(sum_of_some(2, slice(0, 1)))),
    (KEYS, "a head is not added", "query-head-lost", summed(sum_of_some(3, slice(0, 2)))),
    (BLOCKS, "a short tile", "query-lost", summed(sum_of_some(2, queries=slice(0, 192)))),
    (WINDOW, "a short tile", "queries-lost", summed(sum_of_some(3, queries=slice(0, 192)))),
    (EXACT, "dk and dv are summed in bfloat16", "unexplained", summed(sum_in_bfloat16(3))),
)
broken_inputs(
    (EXACT, "dq is rounded to float16", "gradient-rounded", gradient("q", rounded)),
    (WINDOW, "the window is one short", "window-size", put(window=63)),
    (EXACT, "the window is not looked at", "window-ignored", put(window=200)),
    (KEYS, "keys are seen a token early", "compressed-key-end", put(block=31)),
    (BLOCKS, "causality by the block", "block-not-causal", put(shift=None)),
    (
        EMPTY,
        "-1 is clamped to 0",
        "none-is-block-zero",
        selections.choice(lambda x: x.clamp(min=0)),
    ),
    (PACKED, "cu_seqlens is not looked at", "packing-ignored", put(cu_seqlens=None)),
    (SPANS, "a span is lost", "last-span-lost", on("ranges", lambda x: x[..., :-1, :])),
    (BLOCKS, "dk's heads in reverse", "unexplained", gradient("k", lambda grad: grad.flip(2))),
    (WINDOW, "the last tile of dq is not written", "not-written", gradient("q", without(192))),
    (LONG, "the last key's dk is not written", "unexplained", gradient("k", without(126))),
    (LONG, "the last key's dv is not written", "unexplained", gradient("v", without(126))),
    (SPANS, "one key's gradient is NaN", "not-finite", gradient("k", one_nan)),
    (SPANS, "dv of the call before", "unexplained", gradient("v", of_the_call_before())),
    (KEYS, "dk is added to what was there", "unexplained", gradient("k", added_to_those_before())),
)
broken_outputs(
    (EXACT, "do goes through bfloat16", "grad-out-rounded", through_bfloat16),
    (WINDOW, "the forward loses a row", "all-zero", lambda out, x: Lost.apply(out)),
)

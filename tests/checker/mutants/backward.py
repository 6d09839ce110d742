"""The gradients of the families that have a backward."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.checker.mutants import blocks, compressed, gradient, ranges, window
from tests.checker.mutants.mutant import (
    Kernel,
    broken_inputs,
    broken_output,
    broken_steps,
    case,
    mutant_that_remembers,
)

SPANS = case(
    ranges.OP, "float16", "mixed", "backward",
    B=2, S=6, G=2, H=3, D=64, Dv=32, S_kv=150, n_spans=5, L=60,
)  # fmt: skip
BLOCKS = case(blocks.OP, "bfloat16", "random", "backward", **blocks.EDGE)
EMPTY = case(blocks.OP, "float16", "empty_rows", "backward", **blocks.EDGE)
PACKED = case(blocks.OP, "bfloat16", "packed", "backward", B=1, T=300, HQ=3, H=3, D=32, Dv=32, S=3)
WINDOW = case(window.OP, "bfloat16", "dense", "backward", window=64, **window.EDGE)
EXACT = case(window.OP, "float32", "dense", "backward", window=65, **window.EDGE)
KEYS = case(
    compressed.OP, "bfloat16", "dense", "backward",
    B=2, T=200, HQ=6, H=2, D=64, Dv=32, **compressed.SIZES,
)  # fmt: skip

# Late keys are seen by few queries, so that their gradients are small beside a typical row.
LONG_KEYS = case(
    compressed.OP, "bfloat16", "dense", "backward",
    B=1, T=2048, HQ=1, H=1, D=32, Dv=32, **compressed.SIZES,
)  # fmt: skip


def changed(x: Tensor, change) -> Tensor:
    """Return the same tensor, whose gradient `change` changes."""
    same = x.view_as(x)
    if same.requires_grad:
        same.register_hook(change)
    return same


def rounded(grad: Tensor) -> Tensor:
    return grad.half().float()


def _without(begin: int):
    """Return a function that zeroes a gradient from index `begin` of axis 1."""

    def forget(grad: Tensor) -> Tensor:
        grad = grad.clone()
        grad[:, begin:] = 0
        return grad

    return forget


broken_steps(SPANS, "rowsum(do o) is not subtracted", "delta-missing", gradient.NoDelta())
broken_steps(
    BLOCKS,
    "rowsum(do o) is not subtracted for the keys",
    "delta-missing",
    gradient.NoDeltaForKeys(),
)
broken_steps(BLOCKS, "dq is not scaled", "gradient-unscaled", gradient.QueriesUnscaled())
broken_steps(WINDOW, "dk is scaled twice", "gradient-scaled-twice", gradient.KeysScaledTwice())
broken_steps(KEYS, "exp2 is differentiated as exp", "log2-twice", gradient.Exp2AsExp())
broken_steps(SPANS, "a minus is lost", "sign", gradient.WrongSign())
broken_steps(KEYS, "two programs add the same dv", "twice", gradient.CountedTwice())
broken_steps(
    BLOCKS,
    "dk and dv of one head of a group",
    "query-head-only",
    gradient.SomeHeads(2, slice(0, 1)),
)
broken_steps(
    KEYS,
    "the last head of a group is not added",
    "query-head-lost",
    gradient.SomeHeads(3, slice(0, 2)),
)
broken_steps(
    BLOCKS, "a tile of queries that is not full is lost", "query-lost", gradient.SomeQueries(2, 192)
)
broken_steps(
    WINDOW,
    "a tile of queries that is not full is lost",
    "queries-lost",
    gradient.SomeQueries(3, 192),
)
broken_steps(EXACT, "dk and dv are summed in bfloat16", "unexplained", gradient.KeysInBfloat16(3))


def gradient_of(name, change):
    """Return a change of the gradient of a tensor."""
    return lambda x: {name: changed(getattr(x, name), change)}


def one_nan(grad: Tensor) -> Tensor:
    grad = grad.clone()
    grad[1, 0, 7, 3] = torch.nan
    return grad


for case_, bug, diagnosis, change in (
    (EXACT, "dq is rounded to float16", "gradient-rounded", gradient_of("q", rounded)),
    (WINDOW, "the window is one short", "window-size", lambda x: {"window": x.window - 1}),
    (EXACT, "the window is not looked at", "window-ignored", lambda x: {"window": 200}),
    (KEYS, "keys are seen a token early", "compressed-key-end", lambda x: {"block": 31}),
    (BLOCKS, "causality by the block", "block-not-causal", lambda x: {"shift": None}),
    (
        EMPTY,
        "-1 is clamped to 0",
        "none-is-block-zero",
        lambda x: {"block_indices": x.block_indices.clamp(min=0)},
    ),
    (PACKED, "cu_seqlens is not looked at", "packing-ignored", lambda x: {"cu_seqlens": None}),
    (
        SPANS,
        "a loop over spans ends one early",
        "last-span-lost",
        lambda x: {"ranges": x.ranges[..., :-1, :]},
    ),
    (
        BLOCKS,
        "dk's heads are written in reverse",
        "unexplained",
        gradient_of("k", lambda grad: grad.flip(2)),
    ),
    (WINDOW, "the last tile of dq is not written", "not-written", gradient_of("q", _without(192))),
    (LONG_KEYS, "the last key's dk is not written", "unexplained", gradient_of("k", _without(126))),
    (LONG_KEYS, "the last key's dv is not written", "unexplained", gradient_of("v", _without(126))),
    (SPANS, "one key's gradient is NaN", "not-finite", gradient_of("k", one_nan)),
):
    broken_inputs(case_, bug, diagnosis, change)


class Lost(torch.autograd.Function):  # type: ignore[misc]
    """Loses the last row of an output, and hands its gradient back as it is."""

    @staticmethod
    def forward(ctx, out):
        out = out.clone()
        out[-1, -1, -1] = 0
        return out

    @staticmethod
    def backward(ctx, grad):
        return grad


for case_, bug, diagnosis, spoil in (
    (
        EXACT,
        "do goes through bfloat16",
        "grad-out-rounded",
        lambda out, x: changed(out, lambda grad: grad.bfloat16().float()),
    ),
    (WINDOW, "the training forward loses a row", "all-zero", lambda out, x: Lost.apply(out)),
):
    broken_output(case_, bug, diagnosis, spoil)


@mutant_that_remembers(SPANS, "dv of the call before", "unexplained")
def stale_dv() -> Kernel:
    before: list[Tensor] = []

    def stale(grad: Tensor) -> Tensor:
        before.append(grad.clone())
        return before[max(len(before) - 2, 0)]

    def kernel(q, k, v, spans, **options):
        return ranges.naive(q, k, changed(v, stale), spans, **options, steps=gradient.RIGHT)

    return kernel


@mutant_that_remembers(KEYS, "dk is added to what was there", "unexplained")
def not_zeroed() -> Kernel:
    total: list[Tensor] = []

    def add(grad: Tensor) -> Tensor:
        total.append(grad + total[-1] if total else grad)
        return total[-1].clone()

    def kernel(q, k, v, **options):
        return compressed.naive(q, changed(k, add), v, **options, steps=gradient.RIGHT)

    return kernel

"""The gradients of the families that have a backward."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.checker.mutants import blocks, compressed, gradient, ranges, window
from tests.checker.mutants.mutant import Kernel, broken_steps, case, mutant, mutant_that_remembers

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


@mutant(EXACT, "do goes through bfloat16", "grad-out-rounded")
def narrow_grad_out(*tensors, **options):
    out = window.naive(*tensors, **options, steps=gradient.RIGHT)
    return changed(out, lambda grad: grad.bfloat16().float())


@mutant(EXACT, "dq is rounded to float16", "gradient-rounded")
def dq_rounded(q, k, v, **options):
    return window.naive(
        changed(q, lambda grad: grad.half().float()), k, v, **options, steps=gradient.RIGHT
    )


@mutant(WINDOW, "the window is one short", "window-size")
def window_one_short(q, k, v, *, window: int, sm_scale, max_seqlen):
    return _window(q, k, v, window - 1, sm_scale, max_seqlen)


@mutant(EXACT, "the window is not looked at", "window-ignored")
def no_window(q, k, v, *, window: int, sm_scale, max_seqlen):
    return _window(q, k, v, q.shape[1], sm_scale, max_seqlen)


def _window(q, k, v, size, sm_scale, max_seqlen):
    options = {"window": size, "sm_scale": sm_scale, "max_seqlen": max_seqlen}
    return window.naive(q, k, v, **options, steps=gradient.RIGHT)


@mutant(KEYS, "keys are seen a token early", "compressed-key-end")
def one_token_early(q, k, v, *, block, **options):
    return compressed.naive(q, k, v, block=block - 1, **options, steps=gradient.RIGHT)


@mutant(BLOCKS, "causality by the block", "block-not-causal")
def causal_by_block(q, k, v, block_indices, *, sm_scale, block_size):
    seen = blocks.seen_by(block_indices, block_size) > 0
    return blocks.over(q, k, v, seen, sm_scale, gradient.RIGHT)


@mutant(EMPTY, "-1 is clamped to 0", "none-is-block-zero")
def none_is_block_zero(q, k, v, block_indices, **options):
    some = block_indices.clamp(min=0)
    return blocks.naive(q, k, v, some, **options, steps=gradient.RIGHT)


@mutant(PACKED, "cu_seqlens is not looked at", "packing-ignored")
def packed_taken_for_one(q, k, v, block_indices, cu_seqlens, **options):
    return blocks.naive(q, k, v, block_indices, **options, steps=gradient.RIGHT)


@mutant(SPANS, "a loop over spans ends one early", "last-span-lost")
def last_span_lost(q, k, v, spans, **options):
    return ranges.naive(q, k, v, spans[..., :-1, :], **options, steps=gradient.RIGHT)


@mutant(BLOCKS, "dk's heads are written in reverse", "unexplained")
def heads_of_dk_reversed(q, k, v, *rest, **options):
    k = changed(k, lambda grad: grad.flip(2))
    return blocks.naive(q, k, v, *rest, **options, steps=gradient.RIGHT)


@mutant(WINDOW, "the last tile of dq is not written", "not-written")
def tile_of_dq_not_written(q, k, v, **options):
    q = changed(q, _without(192))
    return window.naive(q, k, v, **options, steps=gradient.RIGHT)


@mutant(LONG_KEYS, "the last key's dk is not written", "unexplained")
def last_dk_not_written(q, k, v, **options):
    k = changed(k, _without(126))
    return compressed.naive(q, k, v, **options, steps=gradient.RIGHT)


@mutant(LONG_KEYS, "the last key's dv is not written", "unexplained")
def last_dv_not_written(q, k, v, **options):
    v = changed(v, _without(126))
    return compressed.naive(q, k, v, **options, steps=gradient.RIGHT)


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


@mutant(WINDOW, "the training forward loses a row", "all-zero")
def row_of_the_output_lost(*tensors, **options):
    return Lost.apply(window.naive(*tensors, **options, steps=gradient.RIGHT))


@mutant(SPANS, "one key's gradient is NaN", "not-finite")
def one_nan(q, k, v, spans, **options):
    def spoil(grad: Tensor) -> Tensor:
        grad = grad.clone()
        grad[1, 0, 7, 3] = torch.nan
        return grad

    return ranges.naive(q, changed(k, spoil), v, spans, **options, steps=gradient.RIGHT)


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

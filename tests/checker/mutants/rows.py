"""selection_rows: rows with keys of their own."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from tests.checker.mutants import softmax
from tests.checker.mutants.mutant import (
    Kernel,
    broken_inputs,
    broken_output,
    broken_steps,
    case,
    mutant,
    mutant_that_remembers,
    right,
    unwritten,
)
from tests.checker.mutants.softmax import RIGHT, Steps, attend, partial

OP = "selection_rows"
MANY = case(OP, "float16", N=256, H=4, D=64, Dv=64, L=128)
LONG = case(OP, "bfloat16", N=8, H=8, D=128, Dv=128, L=1024)
WIDE = case(OP, "bfloat16", N=256, H=8, D=64, Dv=64, L=64)
TAIL = case(OP, "bfloat16", N=5, H=17, D=64, Dv=64, L=33)
UNEVEN = case(OP, "float32", N=4, H=4, D=32, Dv=80, L=129)
DEEP = case(OP, "float16", N=2, H=8, D=192, Dv=128, L=65)
LARGE = case(OP, "float16", "large_logits", N=4, H=4, D=64, Dv=64, L=100)
SPLIT = 256


@right(OP)
def naive(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float, steps: Steps = RIGHT) -> Tensor:
    seen = torch.ones(1, 1, k.shape[1], dtype=torch.bool)
    return attend(q, k, v, seen, sm_scale, steps).to(q.dtype)


def splits(q: Tensor, k: Tensor, v: Tensor, sm_scale: float) -> list[tuple[Tensor, Tensor, Tensor]]:
    """The partials of each split of the keys."""
    seen = torch.ones(1, 1, SPLIT, dtype=torch.bool)
    parts = zip(k.split(SPLIT, 1), v.split(SPLIT, 1), strict=True)
    return [partial(q, *part, seen, sm_scale) for part in parts]


def keys(some):
    """Return a change of the keys and their values to some of them."""
    return lambda x: {"k": x.k[:, some], "v": x.v[:, some]}


def padded(x):
    more = (0, 0, 0, -x.k.shape[1] % 32)
    return {"k": pad(x.k, more), "v": pad(x.v, more)}


def values_by_strides_of_keys(x):
    _, length, dv = x.v.shape
    strides = length * dv, x.k.shape[2], 1
    return {"v": x.v.contiguous().as_strided(x.v.shape, strides)}


def rounded(dtype, *names):
    return lambda x: {name: getattr(x, name).to(dtype).float() for name in names}


def with_one_nan(x):
    k = x.k.clone()
    k[77, 13, 5] = torch.nan
    return {"k": k}


for case_, bug, diagnosis, change in (
    (MANY, "a loop over the keys ends one early", "last-key-lost", keys(slice(None, -1))),
    (MANY, "a loop over the keys begins one late", "first-key-lost", keys(slice(1, None))),
    (MANY, "one tile of keys is read", "first-keys-only", keys(slice(64))),
    (TAIL, "a tile that is not full is left out", "last-key-lost", keys(slice(32))),
    (TAIL, "the last tile is not masked", "padding-counted", padded),
    (
        UNEVEN,
        "the last tile is moved back so as to be full",
        "tiles-overlap",
        keys([*range(128), *range(65, 129)]),
    ),
    (
        UNEVEN,
        "the scale is that of the values' width",
        "scale-of-dv",
        lambda x: {"sm_scale": x.v.shape[-1] ** -0.5},
    ),
    (
        MANY,
        "the head is not in q's offset",
        "head-everywhere",
        lambda x: {"q": x.q[:, :1].expand_as(x.q)},
    ),
    (
        MANY,
        "the strides of H and D are swapped",
        "input-axes-swapped",
        lambda x: {"q": x.q.reshape(256, 64, 4).mT},
    ),
    (
        MANY,
        "K is taken for [N, D, L]",
        "input-axes-swapped",
        lambda x: {"k": x.k.reshape(256, 64, 128).mT},
    ),
    (UNEVEN, "V is read with K's stride", "v-strides-of-k", values_by_strides_of_keys),
    (
        DEEP,
        "a head dim over 128 is cut",
        "unexplained",
        lambda x: {"q": x.q[..., :128], "k": x.k[..., :128]},
    ),
    (
        UNEVEN,
        "float32 operands go through bfloat16",
        "inputs-rounded",
        rounded(torch.bfloat16, "q", "k", "v"),
    ),
    # Ten bits of mantissa, as many as float16 has, and here within its range.
    (
        UNEVEN,
        "float32 operands go through TF32",
        "inputs-rounded",
        rounded(torch.float16, "q", "k"),
    ),
    (MANY, "one key is NaN", "not-finite", with_one_nan),
    (LONG, "the last split is not merged", "first-keys-only", keys(slice(None, -SPLIT))),
    (MANY, "V's base is that of another row", "unexplained", lambda x: {"v": x.v.roll(-1, 0)}),
    (MANY, "arguments in the wrong order", "k-v-swapped", lambda x: {"k": x.v, "v": x.k}),
):
    broken_inputs(case_, bug, diagnosis, change)

for case_, bug, diagnosis, steps in (
    (MANY, "scores are not scaled", "scale-missing", softmax.ScoresUnscaled()),
    (MANY, "q is scaled, and the scores once more", "scale-twice", softmax.ScaledTwice()),
    (MANY, "exp2 of natural scores", "log2e-missing", softmax.Exp2WithoutLog2e()),
    (MANY, "exp of scores for exp2", "log2e-extra", softmax.ExpWithLog2e()),
    (UNEVEN, "weights in bfloat16", "weights-rounded", softmax.Bfloat16Weights()),
    (UNEVEN, "the output is summed in float16", "sums-rounded", softmax.Float16Accumulator()),
    (UNEVEN, "the output is summed in bfloat16", "sums-rounded", softmax.Bfloat16Accumulator()),
    (LARGE, "no maximum is subtracted", "not-finite", softmax.NoMaximum()),
    (LONG, "the output is not rescaled", "not-rescaled", softmax.OutputNotRescaled()),
    (LONG, "the sum is not rescaled", "not-rescaled", softmax.SumNotRescaled()),
    (LONG, "the output is not divided", "not-divided", softmax.NotDivided()),
    (LONG, "a barrier is missing", "values-of-other-tile", softmax.ValuesOfTheTileBefore()),
    (MANY, "V is read one key on", "value-of-other-key", softmax.ValuesOfTheNextKey()),
):
    broken_steps(case_, bug, diagnosis, steps)


@mutant(LONG, "splits are merged under maxima of their own", "splits-not-rescaled")
def merged_without_rescaling(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
    outputs, totals, _ = zip(*splits(q, k, v, sm_scale), strict=True)
    return (sum(outputs) / sum(totals)).to(q.dtype)


@mutant(LONG, "splits are averaged", "splits-averaged")
def splits_averaged(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
    parts = [output / total for output, total, _ in splits(q, k, v, sm_scale)]
    return torch.stack(parts).mean(0).to(q.dtype)


def first_split_lost(out, x):
    """In one row."""
    out[5] = naive(x.q, x.k[:, SPLIT:], x.v[:, SPLIT:], sm_scale=x.sm_scale)[5]


def a_key_lost(out, x):
    """In the last rows."""
    q, k, v = x.q[-3:], x.k[-3:, :-1], x.v[-3:, :-1]
    out[-3:] = naive(q, k, v, sm_scale=x.sm_scale)


for case_, bug, diagnosis, spoil in (
    (MANY, "heads are written in reverse", "heads-permuted", lambda out, x: out.flip(1)),
    (
        UNEVEN,
        "columns of the output beyond 64 are not written",
        "not-written",
        unwritten(..., slice(64, None)),
    ),
    (WIDE, "the last row and head is not written", "all-zero", unwritten(-1, -1)),
    (MANY, "one tile of rows is not written", "all-zero", unwritten(slice(240, None))),
    (LONG, "a split is overwritten before it is merged", "last-keys-only", first_split_lost),
    (WIDE, "a tail tile of rows drops a key", "last-key-lost", a_key_lost),
):
    broken_output(case_, bug, diagnosis, spoil)


@mutant_that_remembers(MANY, "the output of the call before", "earlier-call")
def stale_output() -> Kernel:
    return stale(slice(None))


@mutant_that_remembers(MANY, "rows that a race leaves stale", "earlier-call")
def stale_rows() -> Kernel:
    return stale(slice(32, 48))


def stale(rows: slice) -> Kernel:
    before: list[Tensor] = []

    def kernel(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
        before.append(naive(q, k, v, sm_scale=sm_scale))
        out = before[-1].clone()
        out[rows] = before[max(len(before) - 2, 0)][rows]
        return out

    return kernel

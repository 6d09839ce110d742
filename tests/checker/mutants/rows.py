"""selection_rows: rows with keys of their own."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from tests.checker.mutants import softmax
from tests.checker.mutants.mutant import (
    Kernel,
    broken_steps,
    case,
    mutant,
    mutant_that_remembers,
    right,
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


@mutant(MANY, "a loop over the keys ends one early", "last-key-lost")
def last_key_lost(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
    return naive(q, k[:, :-1], v[:, :-1], sm_scale=sm_scale)


@mutant(MANY, "a loop over the keys begins one late", "first-key-lost")
def first_key_lost(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
    return naive(q, k[:, 1:], v[:, 1:], sm_scale=sm_scale)


@mutant(MANY, "one tile of keys is read", "first-keys-only")
def one_tile(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
    return naive(q, k[:, :64], v[:, :64], sm_scale=sm_scale)


@mutant(TAIL, "a tile that is not full is left out", "last-key-lost")
def tail_lost(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
    full = k.shape[1] // 32 * 32
    return naive(q, k[:, :full], v[:, :full], sm_scale=sm_scale)


@mutant(TAIL, "the last tile is not masked", "padding-counted")
def tail_not_masked(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
    more = (0, 0, 0, -k.shape[1] % 32)
    return naive(q, pad(k, more), pad(v, more), sm_scale=sm_scale)


@mutant(UNEVEN, "the last tile is moved back so as to be full", "tiles-overlap")
def tail_overlaps(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
    index = torch.cat([torch.arange(128), torch.arange(65, 129)])
    return naive(q, k[:, index], v[:, index], sm_scale=sm_scale)


broken_steps(MANY, "scores are not scaled", "scale-missing", softmax.ScoresUnscaled())
broken_steps(MANY, "q is scaled, and the scores once more", "scale-twice", softmax.ScaledTwice())


@mutant(UNEVEN, "the scale is that of the values' width", "scale-of-dv")
def scale_of_dv(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
    return naive(q, k, v, sm_scale=v.shape[-1] ** -0.5)


broken_steps(MANY, "exp2 of natural scores", "log2e-missing", softmax.Exp2WithoutLog2e())
broken_steps(MANY, "exp of scores for exp2", "log2e-extra", softmax.ExpWithLog2e())


@mutant(MANY, "the head is not in q's offset", "head-everywhere")
def head_zero(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
    return naive(q[:, :1].expand_as(q), k, v, sm_scale=sm_scale)


@mutant(MANY, "heads are written in reverse", "heads-permuted")
def heads_reversed(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
    return naive(q, k, v, sm_scale=sm_scale).flip(1)


@mutant(MANY, "the strides of H and D are swapped", "input-axes-swapped")
def q_strides_swapped(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
    n, h, d = q.shape
    return naive(q.reshape(n, d, h).mT, k, v, sm_scale=sm_scale)


@mutant(MANY, "K is taken for [N, D, L]", "input-axes-swapped")
def k_transposed(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
    n, length, d = k.shape
    return naive(q, k.reshape(n, d, length).mT, v, sm_scale=sm_scale)


@mutant(UNEVEN, "V is read with K's stride", "v-strides-of-k")
def v_with_strides_of_k(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
    n, length, dv = v.shape
    d = k.shape[2]
    return naive(
        q, k, v.contiguous().as_strided((n, length, dv), (length * dv, d, 1)), sm_scale=sm_scale
    )


@mutant(DEEP, "a head dim over 128 is cut", "unexplained")
def head_dim_cut(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
    return naive(q[..., :128], k[..., :128], v, sm_scale=sm_scale)


@mutant(UNEVEN, "columns of the output beyond 64 are not written", "not-written")
def dv_tail_not_written(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
    out = naive(q, k, v, sm_scale=sm_scale)
    out[..., 64:] = 0
    return out


broken_steps(UNEVEN, "weights in bfloat16", "weights-rounded", softmax.Bfloat16Weights())
broken_steps(
    UNEVEN, "the output is summed in float16", "sums-rounded", softmax.Float16Accumulator()
)
broken_steps(
    UNEVEN, "the output is summed in bfloat16", "sums-rounded", softmax.Bfloat16Accumulator()
)


@mutant(UNEVEN, "float32 operands go through bfloat16", "inputs-rounded")
def bfloat16_operands(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
    rounded = (x.bfloat16().float() for x in (q, k, v))
    return naive(*rounded, sm_scale=sm_scale)


@mutant(UNEVEN, "float32 operands go through TF32", "inputs-rounded")
def tf32_scores(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
    # Ten bits of mantissa, as many as float16 has, and here within its range.
    return naive(q.half().float(), k.half().float(), v, sm_scale=sm_scale)


broken_steps(LARGE, "no maximum is subtracted", "not-finite", softmax.NoMaximum())


@mutant(MANY, "one key is NaN", "not-finite")
def one_nan_key(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
    spoiled = k.clone()
    spoiled[77, 13, 5] = torch.nan
    return naive(q, spoiled, v, sm_scale=sm_scale)


broken_steps(LONG, "the output is not rescaled", "not-rescaled", softmax.OutputNotRescaled())
broken_steps(LONG, "the sum is not rescaled", "not-rescaled", softmax.SumNotRescaled())
broken_steps(LONG, "the output is not divided", "not-divided", softmax.NotDivided())
broken_steps(LONG, "a barrier is missing", "values-of-other-tile", softmax.ValuesOfTheTileBefore())
broken_steps(MANY, "V is read one key on", "value-of-other-key", softmax.ValuesOfTheNextKey())


@mutant(LONG, "the last split is not merged", "first-keys-only")
def last_split_lost(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
    return naive(q, k[:, :-SPLIT], v[:, :-SPLIT], sm_scale=sm_scale)


@mutant(LONG, "splits are merged under maxima of their own", "splits-not-rescaled")
def merged_without_rescaling(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
    outputs, totals, _ = zip(*splits(q, k, v, sm_scale), strict=True)
    return (sum(outputs) / sum(totals)).to(q.dtype)


@mutant(LONG, "splits are averaged", "splits-averaged")
def splits_averaged(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
    parts = [output / total for output, total, _ in splits(q, k, v, sm_scale)]
    return torch.stack(parts).mean(0).to(q.dtype)


@mutant(LONG, "a split is overwritten before it is merged", "last-keys-only")
def first_split_overwritten_in_a_row(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
    out = naive(q, k, v, sm_scale=sm_scale)
    out[5] = naive(q, k[:, SPLIT:], v[:, SPLIT:], sm_scale=sm_scale)[5]
    return out


@mutant(MANY, "V's base is that of another row", "unexplained")
def values_of_the_next_row(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
    return naive(q, k, v.roll(-1, 0), sm_scale=sm_scale)


@mutant(MANY, "arguments in the wrong order", "k-v-swapped")
def k_and_v_swapped(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
    return naive(q, v, k, sm_scale=sm_scale)


@mutant_that_remembers(MANY, "the output of the call before", "earlier-call")
def stale_output() -> Kernel:
    before: list[Tensor] = []

    def kernel(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
        before.append(naive(q, k, v, sm_scale=sm_scale))
        return before[max(len(before) - 2, 0)].clone()

    return kernel


@mutant_that_remembers(MANY, "rows that a race leaves stale", "earlier-call")
def stale_rows() -> Kernel:
    before: list[Tensor] = []

    def kernel(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
        before.append(naive(q, k, v, sm_scale=sm_scale))
        out = before[-1].clone()
        out[32:48] = before[max(len(before) - 2, 0)][32:48]
        return out

    return kernel


@mutant(
    WIDE,
    "the last row and head is not written",
    "all-zero",
)
def last_row_and_head_zero(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
    out = naive(q, k, v, sm_scale=sm_scale)
    out[-1, -1] = 0
    return out


@mutant(WIDE, "a tail tile of rows drops a key", "last-key-lost")
def last_rows_lose_a_key(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
    out = naive(q, k, v, sm_scale=sm_scale)
    out[-3:] = naive(q[-3:], k[-3:, :-1], v[-3:, :-1], sm_scale=sm_scale)
    return out


@mutant(MANY, "one tile of rows is not written", "all-zero")
def tile_of_rows_not_written(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
    out = naive(q, k, v, sm_scale=sm_scale)
    out[240:] = 0
    return out

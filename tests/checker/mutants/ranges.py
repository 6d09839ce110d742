"""selection_ranges: spans of keys that a group shares."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.checker.mutants import softmax
from tests.checker.mutants.mutant import broken_steps, case, mutant, right
from tests.checker.mutants.softmax import RIGHT, Steps, attend

OP = "selection_ranges"
EDGE = {"B": 2, "S": 3, "G": 2, "H": 4, "D": 64, "Dv": 64, "S_kv": 150, "n_spans": 5, "L": 60}
MIXED = case(OP, "float16", "mixed", **EDGE)
OVERLAPPING = case(OP, "float16", "overlapping", **EDGE)
UNSORTED = case(OP, "bfloat16", "unsorted", **EDGE)
REVERSED = case(OP, "bfloat16", "reversed", **EDGE)
BEYOND = case(OP, "float16", "out_of_bounds", **EDGE)
EMPTY = case(OP, "float16", "empty_rows", **EDGE)
UNEVEN = case(OP, "float16", "disjoint", B=1, S=3, G=2, H=17, D=64, Dv=32, S_kv=70, n_spans=1, L=50)
DECODE = case(
    OP, "bfloat16", "disjoint", B=16, S=1, G=2, H=8, D=128, Dv=128, S_kv=512, n_spans=8, L=256
)


def chosen(ranges: Tensor, keys: int) -> Tensor:
    """How many spans [..., n, 2] hold each key [..., keys]."""
    position = torch.arange(keys)
    start, end = (ranges[..., i].unsqueeze(-1) for i in (0, 1))
    return ((position >= start) & (position < end)).sum(-2)


def over(
    q: Tensor, k: Tensor, v: Tensor, seen: Tensor, sm_scale: float, steps: Steps = RIGHT
) -> Tensor:
    """seen: bool [B,S,G,S_kv]."""
    b, s, g, h, _ = q.shape
    rows = q.permute(0, 2, 3, 1, 4).flatten(2, 3)
    of_rows = seen.transpose(1, 2).repeat(1, 1, h, 1)
    out = attend(rows, k, v, of_rows, sm_scale, steps)
    return out.view(b, g, h, s, -1).permute(0, 3, 1, 2, 4).to(q.dtype).contiguous()


@right(OP)
def naive(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    ranges: Tensor,
    *,
    sm_scale: float,
    selected_len: int,
    steps: Steps = RIGHT,
) -> Tensor:
    return over(q, k, v, chosen(ranges, k.shape[2]) > 0, sm_scale, steps)


def shifted(ranges: Tensor, start: int, end: int) -> Tensor:
    """Spans with their ends moved; empty ones stay so."""
    moved = ranges + torch.tensor([start, end], dtype=ranges.dtype)
    return torch.where((ranges[..., 1:] > ranges[..., :1]), moved, 0)


@mutant(OVERLAPPING, "spans are gone through one by one", "overlap-counted")
def overlaps_counted_twice(q, k, v, ranges, *, sm_scale, selected_len):
    times = chosen(ranges, k.shape[2])
    b, s, g = times.shape[:3]
    # Every key as often as spans hold it.
    row = [torch.arange(k.shape[2]).repeat_interleave(t) for t in times.flatten(0, 2)]
    most = max(len(x) for x in row)
    index = torch.stack([torch.nn.functional.pad(x, (0, most - len(x))) for x in row])
    seen = torch.arange(most) < torch.tensor([len(x) for x in row]).unsqueeze(1)
    kv = torch.arange(b).view(-1, 1, 1).expand(b, s, g).flatten(), torch.arange(g).repeat(b * s)
    gathered = (x[kv[0].unsqueeze(1), kv[1].unsqueeze(1), index] for x in (k, v))
    out = attend(q.flatten(0, 2), *gathered, seen.unsqueeze(1), sm_scale)
    return out.view(*q.shape[:4], -1).to(q.dtype)


@mutant(MIXED, "< for <= at the end of a span", "span-last-key-lost")
def last_key_of_spans_lost(q, k, v, ranges, *, sm_scale, selected_len):
    return over(q, k, v, chosen(shifted(ranges, 0, -1), k.shape[2]) > 0, sm_scale)


@mutant(MIXED, "> for >= at the begin of a span", "span-first-key-lost")
def first_key_of_spans_lost(q, k, v, ranges, *, sm_scale, selected_len):
    return over(q, k, v, chosen(shifted(ranges, 1, 0), k.shape[2]) > 0, sm_scale)


@mutant(DECODE, "<= for < at the end of a span", "span-key-beyond")
def one_key_beyond(q, k, v, ranges, *, sm_scale, selected_len):
    return over(q, k, v, chosen(shifted(ranges, 0, 1), k.shape[2]) > 0, sm_scale)


@mutant(DECODE, "spans are read in whole tiles of 16", "span-rounded")
def ends_rounded_up(q, k, v, ranges, *, sm_scale, selected_len):
    wide = torch.stack([ranges[..., 0], (ranges[..., 1] + 15) // 16 * 16], -1)
    return over(q, k, v, chosen(wide, k.shape[2]) > 0, sm_scale)


@mutant(DECODE, "spans are read from a multiple of 16 on", "span-rounded")
def starts_rounded_down(q, k, v, ranges, *, sm_scale, selected_len):
    wide = torch.stack([ranges[..., 0] // 16 * 16, ranges[..., 1]], -1)
    return over(q, k, v, chosen(wide, k.shape[2]) > 0, sm_scale)


@mutant(DECODE, "a loop over spans ends one early", "last-span-lost")
def last_span_lost(q, k, v, ranges, *, sm_scale, selected_len):
    return over(q, k, v, chosen(ranges[..., :-1, :], k.shape[2]) > 0, sm_scale)


@mutant(UNSORTED, "spans are taken for sorted", "spans-not-sorted")
def taken_for_sorted(q, k, v, ranges, *, sm_scale, selected_len):
    reach = torch.cummax(ranges[..., 1], -1).values.roll(1, -1)
    reach[..., 0] = 0
    start = torch.maximum(ranges[..., 0], reach)
    disjoint = torch.stack([start, torch.maximum(start, ranges[..., 1])], -1)
    return over(q, k, v, chosen(disjoint, k.shape[2]) > 0, sm_scale)


@mutant(REVERSED, "the ends of a span are put in order", "reversed-span")
def ends_put_in_order(q, k, v, ranges, *, sm_scale, selected_len):
    return over(q, k, v, chosen(ranges.sort(-1).values, k.shape[2]) > 0, sm_scale)


@mutant(BEYOND, "an index is clamped, not masked", "index-clamped")
def indices_clamped(q, k, v, ranges, *, sm_scale, selected_len):
    keys = k.shape[2]
    # Seven keys before the first, which are the first, and seven behind the last likewise.
    beyond = 7
    more = [torch.cat([x[:, :, :1]] * beyond + [x] + [x[:, :, -1:]] * beyond, 2) for x in (k, v)]
    return over(q, *more, chosen(ranges + beyond, keys + 2 * beyond) > 0, sm_scale)


@mutant(EMPTY, "the mean of nothing", "not-finite")
def empty_rows_nan(q, k, v, ranges, *, sm_scale, selected_len):
    out = naive(q, k, v, ranges, sm_scale=sm_scale, selected_len=selected_len)
    empty = ~(chosen(ranges, k.shape[2]) > 0).any(-1)
    out[empty] = torch.nan
    return out


@mutant(EMPTY, "softmax of nothing is even", "no-keys-mean")
def empty_rows_mean(q, k, v, ranges, *, sm_scale, selected_len):
    out = naive(q, k, v, ranges, sm_scale=sm_scale, selected_len=selected_len)
    empty = ~(chosen(ranges, k.shape[2]) > 0).any(-1)
    mean = v.float().mean(2).unsqueeze(1).unsqueeze(3).expand_as(out).to(q.dtype)
    return torch.where(empty[..., None, None], mean, out)


@mutant(DECODE, "the group is not in K's offset", "other-kv-head")
def group_zero(q, k, v, ranges, *, sm_scale, selected_len):
    first = (x[:, :1].expand_as(x) for x in (k, v))
    return naive(q, *first, ranges, sm_scale=sm_scale, selected_len=selected_len)


@mutant(DECODE, "the sequence is not in K's offset", "other-sequence")
def batch_zero(q, k, v, ranges, *, sm_scale, selected_len):
    first = (x[:1].expand_as(x) for x in (k, v))
    return naive(q, *first, ranges, sm_scale=sm_scale, selected_len=selected_len)


@mutant(MIXED, "spans are those of group 0", "choice-of-head")
def spans_of_group_zero(q, k, v, ranges, *, sm_scale, selected_len):
    of_first = ranges[:, :, :1].expand_as(ranges)
    return naive(q, k, v, of_first, sm_scale=sm_scale, selected_len=selected_len)


@mutant(MIXED, "spans are those of the query before", "choice-of-query")
def spans_of_the_query_before(q, k, v, ranges, *, sm_scale, selected_len):
    return naive(q, k, v, ranges.roll(1, 1), sm_scale=sm_scale, selected_len=selected_len)


@mutant(UNEVEN, "V is read with K's strides", "v-strides-of-k")
def v_with_strides_of_k(q, k, v, ranges, *, sm_scale, selected_len):
    s, dv = v.shape[2:]
    d = k.shape[3]
    index = torch.arange(s).unsqueeze(1) * d + torch.arange(dv)
    flat = v.flatten(2)
    wrong = flat[..., index.clamp(max=flat.shape[-1] - 1)]
    return naive(q, k, wrong, ranges, sm_scale=sm_scale, selected_len=selected_len)


@mutant(DECODE, "64 keys at most", "first-keys-only")
def one_tile(q, k, v, ranges, *, sm_scale, selected_len):
    seen = chosen(ranges, k.shape[2]) > 0
    return over(q, k, v, seen & (seen.cumsum(-1) <= 64), sm_scale)


broken_steps(DECODE, "exp2 of natural scores", "log2e-missing", softmax.Exp2WithoutLog2e())
broken_steps(
    DECODE,
    "keys of a tile that no span holds have a score of 0",
    "masked-scores-zero",
    softmax.MaskedScoresAreZero(),
)

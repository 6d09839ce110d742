"""selection_ranges: spans of keys that a group shares."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.checker.mutants import softmax
from tests.checker.mutants.mutant import (
    broken_inputs,
    broken_output,
    broken_steps,
    case,
    mutant,
    right,
)
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
    most: int | None = None,
) -> Tensor:
    """most: keys of a row that are read."""
    seen = chosen(ranges, k.shape[2]) > 0
    if most is not None:
        seen = seen & (seen.cumsum(-1) <= most)
    return over(q, k, v, seen, sm_scale, steps)


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


def spans(change):
    """Return a change of the spans."""
    return lambda x: {"ranges": change(x.ranges)}


def ends_rounded_up(ranges):
    return torch.stack([ranges[..., 0], (ranges[..., 1] + 15) // 16 * 16], -1)


def starts_rounded_down(ranges):
    return torch.stack([ranges[..., 0] // 16 * 16, ranges[..., 1]], -1)


def taken_for_sorted(ranges):
    reach = torch.cummax(ranges[..., 1], -1).values.roll(1, -1)
    reach[..., 0] = 0
    start = torch.maximum(ranges[..., 0], reach)
    return torch.stack([start, torch.maximum(start, ranges[..., 1])], -1)


def indices_clamped(x):
    # Seven keys before the first, which are the first, and seven behind the last likewise.
    beyond = 7
    k, v = (
        torch.cat([t[:, :, :1]] * beyond + [t] + [t[:, :, -1:]] * beyond, 2) for t in (x.k, x.v)
    )
    return {"k": k, "v": v, "ranges": x.ranges + beyond}


def values_by_strides_of_keys(x):
    s, dv = x.v.shape[2:]
    index = torch.arange(s).unsqueeze(1) * x.k.shape[3] + torch.arange(dv)
    flat = x.v.flatten(2)
    return {"v": flat[..., index.clamp(max=flat.shape[-1] - 1)]}


for case_, bug, diagnosis, change in (
    (
        MIXED,
        "< for <= at the end of a span",
        "span-last-key-lost",
        spans(lambda x: shifted(x, 0, -1)),
    ),
    (
        MIXED,
        "> for >= at the begin of a span",
        "span-first-key-lost",
        spans(lambda x: shifted(x, 1, 0)),
    ),
    (DECODE, "<= for < at the end of a span", "span-key-beyond", spans(lambda x: shifted(x, 0, 1))),
    (DECODE, "spans are read in whole tiles of 16", "span-rounded", spans(ends_rounded_up)),
    (DECODE, "spans begin at a multiple of 16", "span-rounded", spans(starts_rounded_down)),
    (DECODE, "a loop over spans ends early", "last-span-lost", spans(lambda x: x[..., :-1, :])),
    (UNSORTED, "spans are taken for sorted", "spans-not-sorted", spans(taken_for_sorted)),
    (REVERSED, "ends are put in order", "reversed-span", spans(lambda x: x.sort(-1).values)),
    (BEYOND, "an index is clamped, not masked", "index-clamped", indices_clamped),
    (
        DECODE,
        "the group is not in K's offset",
        "other-kv-head",
        lambda x: {"k": x.k[:, :1].expand_as(x.k), "v": x.v[:, :1].expand_as(x.v)},
    ),
    (
        DECODE,
        "the sequence is not in K's offset",
        "other-sequence",
        lambda x: {"k": x.k[:1].expand_as(x.k), "v": x.v[:1].expand_as(x.v)},
    ),
    (
        MIXED,
        "spans are those of group 0",
        "choice-of-head",
        spans(lambda x: x[:, :, :1].expand_as(x)),
    ),
    (
        MIXED,
        "spans are those of the query before",
        "choice-of-query",
        spans(lambda x: x.roll(1, 1)),
    ),
    (UNEVEN, "V is read with K's strides", "v-strides-of-k", values_by_strides_of_keys),
    (DECODE, "one key is read", "key-zero-only", lambda x: {"most": 1}),
    (DECODE, "64 keys at most", "first-keys-only", lambda x: {"most": 64}),
):
    broken_inputs(case_, bug, diagnosis, change)


def empty_rows_nan(out, x):
    out[~chosen(x.ranges, x.k.shape[2]).any(-1)] = torch.nan


def empty_rows_mean(out, x):
    empty = ~chosen(x.ranges, x.k.shape[2]).any(-1)
    mean = x.v.float().mean(2).unsqueeze(1).unsqueeze(3).expand_as(out).to(out.dtype)
    return torch.where(empty[..., None, None], mean, out)


broken_output(EMPTY, "the mean of nothing", "not-finite", empty_rows_nan)
broken_output(EMPTY, "softmax of nothing is even", "no-keys-mean", empty_rows_mean)
broken_steps(DECODE, "exp2 of natural scores", "log2e-missing", softmax.Exp2WithoutLog2e())
broken_steps(
    DECODE,
    "keys of a tile that no span holds have a score of 0",
    "masked-scores-zero",
    softmax.MaskedScoresAreZero(),
)

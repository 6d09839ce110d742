"""Mutants of selection_rows, selection_varlen, selection_ranges and selection_blocks."""

import torch
from torch.nn.functional import pad

from tests.checker.mutants import kernel
from tests.checker.mutants.kernel import RIGHT, as_it_is
from tests.checker.mutants.mutant import (
    broken_edges,
    broken_inputs,
    broken_outputs,
    broken_steps,
    case,
    first,
    heads_in_turn,
    on,
    put,
    sequences_one_late,
    stale,
    unwritten,
)
from tests.checker.mutants.right import held, rows

ROWS = "selection_rows"
MANY = case(ROWS, "float16", N=256, H=4, D=64, Dv=64, L=128)
LONG = case(ROWS, "bfloat16", N=8, H=8, D=128, Dv=128, L=1024)
WIDE = case(ROWS, "bfloat16", N=256, H=8, D=64, Dv=64, L=64)
TAIL = case(ROWS, "bfloat16", N=5, H=17, D=64, Dv=64, L=33)
UNEVEN = case(ROWS, "float32", N=4, H=4, D=32, Dv=80, L=129)
DEEP = case(ROWS, "float16", N=2, H=8, D=192, Dv=128, L=65)
LARGE = case(ROWS, "float16", "large_logits", N=4, H=4, D=64, Dv=64, L=100)
SPLIT = 256  # keys


def keys(*some):
    """Return a change of the keys of rows and their values to some of them."""
    return on("k v", lambda x: x[:, slice(*some)])


def padded(x):
    return pad(x, (0, 0, 0, -x.shape[1] % 32))


def moved_back(x):
    return x[:, [*range(128), *range(65, 129)]]


def taken_for(name, *shape):
    return on(name, lambda x: x.reshape(shape).mT)


def rounded(names, dtype):
    return on(names, lambda x: x.to(dtype).float())


def values_of_row_strides(x):
    _, length, dv = x.v.shape
    return {"v": x.v.contiguous().as_strided(x.v.shape, (length * dv, x.k.shape[2], 1))}


def with_one_nan(k):
    k = k.clone()
    k[77, 13, 5] = torch.nan
    return k


broken_inputs(
    (MANY, "a loop over the keys ends one early", "last-key-lost", keys(-1)),
    (MANY, "a loop over the keys begins one late", "first-key-lost", keys(1, None)),
    (MANY, "one tile of keys is read", "first-keys-only", keys(64)),
    (TAIL, "a tile that is not full is left out", "last-key-lost", keys(32)),
    (TAIL, "the last tile is not masked", "padding-counted", on("k v", padded)),
    (UNEVEN, "the last tile is moved back to be full", "tiles-overlap", on("k v", moved_back)),
    (UNEVEN, "the scale is that of the values' width", "scale-of-dv", put(sm_scale=80**-0.5)),
    (MANY, "the head is not in q's offset", "head-everywhere", on("q", first(1))),
    (MANY, "the strides of H and D are swapped", "input-axes-swapped", taken_for("q", 256, 64, 4)),
    (MANY, "K is taken for [N, D, L]", "input-axes-swapped", taken_for("k", 256, 64, 128)),
    (UNEVEN, "V is read with K's stride", "v-strides-of-k", values_of_row_strides),
    (DEEP, "a head dim over 128 is cut", "unexplained", on("q k", lambda x: x[..., :128])),
    (UNEVEN, "operands go through bfloat16", "inputs-rounded", rounded("q k v", torch.bfloat16)),
    # float16 has as many bits of mantissa as TF32, and these values are in its range.
    (UNEVEN, "operands go through TF32", "inputs-rounded", rounded("q k", torch.float16)),
    (MANY, "one key is NaN", "not-finite", on("k", with_one_nan)),
    (LONG, "the last split is not merged", "first-keys-only", keys(-SPLIT)),
    (MANY, "V's base is that of another row", "unexplained", on("v", lambda x: x.roll(-1, 0))),
    (MANY, "arguments in the wrong order", "k-v-swapped", lambda x: {"k": x.v, "v": x.k}),
    (MANY, "scores are not scaled", "scale-missing", put(sm_scale=1.0)),
)


def of_splits(**steps):
    """Return steps that merge splits of the keys, each under a maximum of its own."""
    return RIGHT.changed(
        tile=SPLIT,
        top=lambda self, before, scores: scores.amax(-1, keepdim=True),
        rescale_output=as_it_is,
        rescale_sum=as_it_is,
        **steps,
    )


AVERAGED = of_splits(
    weights=lambda self, p: p / p.sum(-1, keepdim=True) / (LONG.shape["L"] // SPLIT),
    divide=as_it_is,
)
NO_MAXIMUM = RIGHT.changed(
    top=lambda self, before, scores: torch.zeros_like(before),
    rescale_sum=as_it_is,
    rescale_output=as_it_is,
)
NEXT_VALUES = RIGHT.changed(
    values=lambda self, v, start: v.roll(-1, -2)[..., start : start + self.tile, :]
)


def summed_in(dtype):
    return RIGHT.changed(add=lambda self, output, part: (output + part).to(dtype).float())


broken_steps(
    (MANY, "q is scaled, and the scores once more", "scale-twice", kernel.SCALED_TWICE),
    (MANY, "exp2 of natural scores", "log2e-missing", kernel.EXP2_WITHOUT_LOG2E),
    (MANY, "exp of scores for exp2", "log2e-extra", kernel.EXP_WITH_LOG2E),
    (UNEVEN, "weights in bfloat16", "weights-rounded", kernel.BFLOAT16_WEIGHTS),
    (UNEVEN, "the output is summed in float16", "sums-rounded", summed_in(torch.float16)),
    (UNEVEN, "the output is summed in bfloat16", "sums-rounded", summed_in(torch.bfloat16)),
    (LARGE, "no maximum is subtracted", "not-finite", NO_MAXIMUM),
    (LONG, "the output is not rescaled", "not-rescaled", RIGHT.changed(rescale_output=as_it_is)),
    (LONG, "the sum is not rescaled", "not-rescaled", kernel.SUM_NOT_RESCALED),
    (LONG, "the output is not divided", "not-divided", RIGHT.changed(divide=as_it_is)),
    (LONG, "a barrier is missing", "values-of-other-tile", kernel.STALE_TILES),
    (MANY, "V is read one key on", "value-of-other-key", NEXT_VALUES),
    (LONG, "splits are merged under maxima of their own", "splits-not-rescaled", of_splits()),
    (LONG, "splits are averaged", "splits-averaged", AVERAGED),
)


def first_split_lost(out, x):
    """Lose the first split of keys in one row."""
    out[5] = rows(x.q, x.k[:, SPLIT:], x.v[:, SPLIT:], sm_scale=x.sm_scale)[5]


def a_key_lost(out, x):
    """Lose the last key in the last three rows."""
    out[-3:] = rows(x.q[-3:], x.k[-3:, :-1], x.v[-3:, :-1], sm_scale=x.sm_scale)


broken_outputs(
    (MANY, "heads are written in reverse", "heads-permuted", lambda out, x: out.flip(1)),
    (UNEVEN, "columns beyond 64 are not written", "not-written", unwritten(..., slice(64, None))),
    (WIDE, "the last row and head is not written", "all-zero", unwritten(-1, -1)),
    (MANY, "one tile of rows is not written", "all-zero", unwritten(slice(240, None))),
    (LONG, "a split is overwritten before it is merged", "last-keys-only", first_split_lost),
    (WIDE, "a tail tile of rows drops a key", "last-key-lost", a_key_lost),
    (MANY, "the output of the call before", "earlier-call", stale(lambda x: slice(None))),
    (MANY, "rows that a race leaves stale", "earlier-call", stale(lambda x: slice(32, 48))),
)

VARLEN = "selection_varlen"
SPREAD = case(VARLEN, "float16", "spread", N=256, H=4, D=64, Dv=64, L=64)
VARIED = case(VARLEN, "bfloat16", "mixed", N=128, H=4, D=64, Dv=64, L=256)
EMPTY = case(VARLEN, "float16", "empty_rows", N=8, H=4, D=64, Dv=64, L=90)


def empty_rows_divided(out, x):
    out[x.cu_seqlens.diff() == 0] /= 0


broken_edges(
    (SPREAD, "the end of a row is one early", "last-key-lost", lambda a, b: (a, b - 1)),
    (SPREAD, "one key is read", "key-zero-only", lambda a, b: (a, b.clamp(max=a + 1))),
    (VARIED, "33 keys are read", "last-keys-only", lambda a, b: (a.clamp(min=b - 33), b)),
    (SPREAD, "the begin of a row is one late", "first-key-lost", lambda a, b: (a + 1, b)),
    (SPREAD, "<= for < at the end of a row", "key-beyond-end", lambda a, b: (a, b + 1)),
    (SPREAD, "a row begins one early", "key-before-begin", lambda a, b: ((a - 1).clamp(min=0), b)),
    (SPREAD, "keys of the next row", "keys-of-other-row", lambda a, b: (a.roll(-1), b.roll(-1))),
    (SPREAD, "rows end where max_seqlen does", "rows-as-long", lambda a, b: (a, a + (b - a).max())),
    (SPREAD, "a short tile is lost", "partial-tile-lost", lambda a, b: (a, a + (b - a) // 16 * 16)),
    (VARIED, "128 keys at most", "first-keys-only", lambda a, b: (a, b.clamp(max=a + 128))),
    (EMPTY, "no keys, and one is read", "key-beyond-end", lambda a, b: (a, b.clamp(min=a + 1))),
)
broken_steps(
    (VARIED, "the maximum of the first tile is kept", "not-rescaled", kernel.SUM_NOT_RESCALED),
    (SPREAD, "q is scaled, and the scores once more", "scale-twice", kernel.SCALED_TWICE),
)
broken_inputs(
    (SPREAD, "heads are those of [N, D, H]", "input-axes-swapped", taken_for("q", 256, 64, 4)),
    (SPREAD, "keys beyond a row are zero, not masked", "padding-counted", put(padded=16)),
)
broken_outputs(
    (EMPTY, "0 / 0 in a row without keys", "not-finite", empty_rows_divided),
    (
        EMPTY,
        "rows without keys are not written",
        "earlier-call",
        stale(lambda x: x.cu_seqlens.diff() == 0),
    ),
)

RANGES = "selection_ranges"
EDGE = {"B": 2, "S": 3, "G": 2, "H": 4, "D": 64, "Dv": 64, "S_kv": 150, "n_spans": 5, "L": 60}
ONE = {"B": 1, "S": 3, "G": 2, "H": 17, "D": 64, "Dv": 32, "S_kv": 70, "n_spans": 1, "L": 50}
LAST = {"B": 8, "S": 1, "G": 2, "H": 4, "D": 64, "Dv": 64, "S_kv": 512, "n_spans": 8, "L": 256}
MIXED = case(RANGES, "float16", "mixed", **EDGE)
OVERLAPPING = case(RANGES, "float16", "overlapping", **EDGE)
UNSORTED = case(RANGES, "bfloat16", "unsorted", **EDGE)
REVERSED = case(RANGES, "bfloat16", "reversed", **EDGE)
BEYOND = case(RANGES, "float16", "out_of_bounds", **EDGE)
NOTHING = case(RANGES, "float16", "empty_rows", **EDGE)
ODD = case(RANGES, "float16", "disjoint", **ONE)
DECODE = case(RANGES, "bfloat16", "disjoint", **LAST)


def spans(change):
    """Return a change of the starts and ends of spans."""
    return on("ranges", lambda x: torch.stack(change(x[..., 0], x[..., 1]), -1))


def shifted(start, end):
    """Return a change that moves the starts and ends of spans. Empty spans stay empty."""
    by = torch.tensor([start, end])
    return on("ranges", lambda x: torch.where(x[..., 1:] > x[..., :1], x + by, 0))


def taken_for_sorted(begin, end):
    reach = torch.cummax(end, -1).values.roll(1, -1)
    reach[..., 0] = 0
    begin = torch.maximum(begin, reach)
    return begin, torch.maximum(begin, end)


def indices_clamped(x):
    # Add seven copies of the first key before it, and seven of the last key after it.
    k, v = (torch.cat([t[:, :, :1]] * 7 + [t] + [t[:, :, -1:]] * 7, 2) for t in (x.k, x.v))
    return {"k": k, "v": v, "ranges": x.ranges + 7}


def values_of_span_strides(x):
    s, dv = x.v.shape[2:]
    index = torch.arange(s).unsqueeze(1) * x.k.shape[3] + torch.arange(dv)
    flat = x.v.flatten(2)
    return {"v": flat[..., index.clamp(max=flat.shape[-1] - 1)]}


def is_empty(x):
    return ~held(x.ranges, x.k.shape[2]).any(-1)


def empty_spans_nan(out, x):
    out[is_empty(x)] = torch.nan


def empty_spans_mean(out, x):
    mean = x.v.float().mean(2).unsqueeze(1).unsqueeze(3).expand_as(out).to(out.dtype)
    return torch.where(is_empty(x)[..., None, None], mean, out)


broken_inputs(
    (MIXED, "< for <= at the end of a span", "span-last-key-lost", shifted(0, -1)),
    (MIXED, "> for >= at the begin of a span", "span-first-key-lost", shifted(1, 0)),
    (DECODE, "<= for < at the end of a span", "span-key-beyond", shifted(0, 1)),
    (
        DECODE,
        "spans are read in tiles",
        "span-rounded",
        spans(lambda a, b: (a, (b + 15) // 16 * 16)),
    ),
    (
        DECODE,
        "spans begin at a multiple of 16",
        "span-rounded",
        spans(lambda a, b: (a // 16 * 16, b)),
    ),
    (
        DECODE,
        "a loop over spans ends early",
        "last-span-lost",
        on("ranges", lambda x: x[..., :-1, :]),
    ),
    (UNSORTED, "spans are taken for sorted", "spans-not-sorted", spans(taken_for_sorted)),
    (REVERSED, "ends are put in order", "reversed-span", on("ranges", lambda x: x.sort(-1).values)),
    (BEYOND, "an index is clamped, not masked", "index-clamped", indices_clamped),
    (DECODE, "the group is not in K's offset", "other-kv-head", on("k v", first(1))),
    (DECODE, "the sequence is not in K's offset", "other-sequence", on("k v", first(0))),
    (MIXED, "spans are those of group 0", "choice-of-head", on("ranges", first(2))),
    (
        MIXED,
        "the spans of the query before",
        "choice-of-query",
        on("ranges", lambda x: x.roll(1, 1)),
    ),
    (ODD, "V is read with K's strides", "v-strides-of-k", values_of_span_strides),
    (DECODE, "one key is read", "key-zero-only", put(most=1)),
    (DECODE, "64 keys at most", "first-keys-only", put(most=64)),
)
broken_outputs(
    (NOTHING, "the mean of nothing", "not-finite", empty_spans_nan),
    (NOTHING, "softmax of nothing is even", "no-keys-mean", empty_spans_mean),
)
broken_steps(
    (DECODE, "exp2 of natural scores", "log2e-missing", kernel.EXP2_WITHOUT_LOG2E),
    (DECODE, "masked scores are 0", "masked-scores-zero", kernel.MASKED_SCORES_ZERO),
    (OVERLAPPING, "spans are gone through one by one", "overlap-counted", kernel.OVERLAPS_COUNTED),
)

BLOCKS = "selection_blocks"
CHOSEN = {"B": 1, "T": 193, "HQ": 4, "H": 2, "D": 64, "Dv": 32, "S": 2}
RANDOM = case(BLOCKS, "float16", "random", **CHOSEN)
REPEATED = case(BLOCKS, "bfloat16", "repeated", **{**CHOSEN, "S": 3})
NONE = case(BLOCKS, "float16", "empty_rows", **CHOSEN)
PACKED = case(BLOCKS, "bfloat16", "packed", B=1, T=300, HQ=3, H=3, D=32, Dv=32, S=3)
SMALL = case(BLOCKS, "bfloat16", "random", B=1, T=130, HQ=4, H=1, D=64, Dv=64, S=4, block_size=32)
LONGER = case(BLOCKS, "bfloat16", "random", B=1, T=320, HQ=8, H=4, D=32, Dv=32, S=4)


def choice(change):
    return on("block_indices", change)


def ended_at_none(x):
    return x.masked_fill((x < 0).cummax(-1).values, -1)


def own_block_lost(x):
    own = (torch.arange(x.shape[1]) // 64).view(1, -1, 1, 1)
    return x.masked_fill(x == own, -1)


def heads_first(q):
    b, t, h, d = q.shape
    return q.reshape(b, h, t, d).transpose(1, 2)


def written_heads_first(out, x):
    return out.transpose(1, 2).reshape(out.shape).contiguous()


broken_inputs(
    (RANDOM, "causality by the block", "block-not-causal", put(shift=None)),
    (RANDOM, "< for <= in the causal mask", "own-key-lost", put(shift=-1)),
    (RANDOM, "the causal mask is one token off", "key-beyond-end", put(shift=1)),
    (RANDOM, "a loop over a block ends early", "span-last-key-lost", put(places=63)),
    (NONE, "-1 is clamped to 0", "none-is-block-zero", choice(lambda x: x.clamp(min=0))),
    (RANDOM, "a row ends at its first -1", "all-zero", choice(ended_at_none)),
    (LONGER, "the last slot is not read", "last-span-lost", choice(lambda x: x[..., :-1])),
    (
        LONGER,
        "the first block is lost",
        "block-zero-lost",
        choice(lambda x: x.masked_fill(x == 0, -1)),
    ),
    (RANDOM, "own blocks are skipped", "own-block-lost", choice(own_block_lost)),
    (LONGER, "the choice is that of KV head 0", "choice-of-head", choice(first(2))),
    (LONGER, "V's head is not in its offset", "other-kv-head", on("v", first(2))),
    (RANDOM, "the choice of the query before", "choice-of-query", choice(lambda x: x.roll(1, 1))),
    (PACKED, "cu_seqlens is not looked at", "packing-ignored", put(cu_seqlens=None)),
    (PACKED, "sequences begin one token late", "sequence-begin", sequences_one_late),
    (SMALL, "blocks are of 64 keys", "block-size", put(block_size=64)),
    (LONGER, "Q is taken for [B, HQ, T, D]", "input-axes-swapped", on("q", heads_first)),
)
broken_steps(
    (RANDOM, "masked scores are 0", "masked-scores-zero", kernel.MASKED_SCORES_ZERO),
    (RANDOM, "exp of scores for exp2", "log2e-extra", kernel.EXP_WITH_LOG2E),
    (REPEATED, "a block given twice is read twice", "overlap-counted", kernel.OVERLAPS_COUNTED),
)
heads_in_turn(LONGER)
broken_outputs(
    (RANDOM, "one tile is not written", "all-zero", unwritten(slice(None), slice(192, None))),
    (RANDOM, "written as [B, HQ, T, Dv]", "output-axes-swapped", written_heads_first),
    (RANDOM, "heads are written in reverse", "heads-permuted", lambda out, x: out.flip(2)),
)

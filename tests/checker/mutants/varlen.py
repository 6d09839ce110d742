"""selection_varlen: rows of unequal length, packed."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.checker.mutants import softmax
from tests.checker.mutants.mutant import (
    Kernel,
    add,
    broken_inputs,
    broken_output,
    broken_steps,
    case,
    mutant,
    mutant_that_remembers,
    right,
)
from tests.checker.mutants.softmax import RIGHT, Steps, attend

OP = "selection_varlen"
SPREAD = case(OP, "float16", "spread", N=256, H=4, D=64, Dv=64, L=64)
MIXED = case(OP, "bfloat16", "mixed", N=256, H=4, D=64, Dv=64, L=256)
EMPTY = case(OP, "float16", "empty_rows", N=8, H=4, D=64, Dv=64, L=90)


def over(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    start: Tensor,
    end: Tensor,
    sm_scale: float,
    steps: Steps = RIGHT,
) -> Tensor:
    """Row i over the packed keys start[i] up to end[i]."""
    start, end = start.long(), end.long().clamp(max=k.shape[0])
    place = torch.arange(max(int((end - start).max()), 1))
    index = (start.unsqueeze(1) + place).clamp(0, k.shape[0] - 1)
    seen = (place < (end - start).unsqueeze(1)).unsqueeze(1)
    return attend(q, k[index], v[index], seen, sm_scale, steps).to(q.dtype)


@right(OP)
def naive(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor,
    *,
    sm_scale: float,
    max_seqlen: int,
    steps: Steps = RIGHT,
) -> Tensor:
    return over(q, k, v, cu_seqlens[:-1], cu_seqlens[1:], sm_scale, steps)


def broken_rows(of, bug, diagnosis, change):
    """Add a kernel whose rows have other keys: change(start, end, max_seqlen) -> (start, end)."""

    def kernel(q, k, v, cu_seqlens, *, sm_scale, max_seqlen):
        edges = change(cu_seqlens[:-1], cu_seqlens[1:], max_seqlen)
        return over(q, k, v, *edges, sm_scale)

    add(of, bug, diagnosis, kernel)


for case_, bug, diagnosis, change in (
    (SPREAD, "the end of a row is one early", "last-key-lost", lambda a, b, n: (a, b - 1)),
    (SPREAD, "one key is read", "key-zero-only", lambda a, b, n: (a, torch.minimum(b, a + 1))),
    (MIXED, "33 keys are read", "last-keys-only", lambda a, b, n: (torch.maximum(a, b - 33), b)),
    (SPREAD, "the begin of a row is one late", "first-key-lost", lambda a, b, n: (a + 1, b)),
    (SPREAD, "<= for < at the end of a row", "key-beyond-end", lambda a, b, n: (a, b + 1)),
    (
        SPREAD,
        "the begin of a row is one early",
        "key-before-begin",
        lambda a, b, n: ((a - 1).clamp(min=0), b),
    ),
    (
        SPREAD,
        "rows have the keys of the next",
        "keys-of-other-row",
        lambda a, b, n: (a.roll(-1), b.roll(-1)),
    ),
    (SPREAD, "rows end where max_seqlen does", "rows-as-long", lambda a, b, n: (a, a + n)),
    (
        SPREAD,
        "a tile that is not full is left out",
        "partial-tile-lost",
        lambda a, b, n: (a, a + (b - a) // 16 * 16),
    ),
    (
        MIXED,
        "a row has 128 keys at most",
        "first-keys-only",
        lambda a, b, n: (a, torch.minimum(b, a + 128)),
    ),
    (
        EMPTY,
        "a row without keys reads one",
        "key-beyond-end",
        lambda a, b, n: (a, torch.maximum(b, a + 1)),
    ),
):
    broken_rows(case_, bug, diagnosis, change)


@mutant(SPREAD, "keys beyond a row are zero, not masked", "padding-counted")
def tail_not_masked(q, k, v, cu_seqlens, *, sm_scale, max_seqlen):
    count = cu_seqlens.diff().long()
    place = torch.arange(max_seqlen)
    index = (cu_seqlens[:-1].long().unsqueeze(1) + place).clamp(max=k.shape[0] - 1)
    present = place < count.unsqueeze(1)
    seen = place < ((count + 15) // 16 * 16).unsqueeze(1)
    keys, values = (x[index] * present.unsqueeze(2) for x in (k, v))
    return attend(q, keys, values, seen.unsqueeze(1), sm_scale).to(q.dtype)


def empty_rows_divided(out, x):
    out[x.cu_seqlens.diff() == 0] /= 0


broken_output(EMPTY, "0 / 0 in a row without keys", "not-finite", empty_rows_divided)
broken_steps(
    MIXED, "the maximum of the first tile is kept", "not-rescaled", softmax.SumNotRescaled()
)
broken_steps(SPREAD, "q is scaled, and the scores once more", "scale-twice", softmax.ScaledTwice())
broken_inputs(
    SPREAD,
    "heads are those of [N, D, H]",
    "input-axes-swapped",
    lambda x: {"q": x.q.reshape(256, 64, 4).mT},
)


@mutant_that_remembers(EMPTY, "rows without keys are not written", "earlier-call")
def empty_rows_stale() -> Kernel:
    buffer: list[Tensor] = []

    def kernel(q, k, v, cu_seqlens, *, sm_scale, max_seqlen):
        out = naive(q, k, v, cu_seqlens, sm_scale=sm_scale, max_seqlen=max_seqlen)
        empty = cu_seqlens.diff() == 0
        if buffer:
            out[empty] = buffer[-1][empty]
        buffer.append(out.clone())
        return out

    return kernel

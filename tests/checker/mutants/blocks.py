"""selection_blocks: chosen blocks of keys, causal inside."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.checker.mutants import softmax
from tests.checker.mutants.mutant import (
    broken_inputs,
    broken_output,
    broken_steps,
    case,
    heads_in_turn,
    mutant,
    right,
    unwritten,
)
from tests.checker.mutants.softmax import RIGHT, Steps, attend

OP = "selection_blocks"
EDGE = {"B": 2, "T": 193, "HQ": 4, "H": 2, "D": 64, "Dv": 32, "S": 2}
RANDOM = case(OP, "float16", "random", **EDGE)
REPEATED = case(OP, "bfloat16", "repeated", **{**EDGE, "S": 3})
EMPTY = case(OP, "float16", "empty_rows", **EDGE)
PACKED = case(OP, "bfloat16", "packed", B=1, T=300, HQ=3, H=3, D=32, Dv=32, S=3)
SMALL = case(OP, "bfloat16", "random", B=1, T=130, HQ=4, H=1, D=64, Dv=64, S=4, block_size=32)
LONGER = case(OP, "bfloat16", "random", B=1, T=320, HQ=32, H=8, D=128, Dv=128, S=4)


def blocks_of(tokens: int, block_size: int, cu_seqlens: Tensor | None) -> tuple[Tensor, Tensor]:
    """The sequence and the block in it that each token is in."""
    position = torch.arange(tokens)
    if cu_seqlens is None:
        return torch.zeros_like(position), position // block_size
    sequence = torch.searchsorted(cu_seqlens.long(), position, right=True) - 1
    return sequence, (position - cu_seqlens.long()[sequence]) // block_size


def seen_by(chosen: Tensor, block_size: int, cu_seqlens: Tensor | None = None) -> Tensor:
    """int64 [B,T,H,T]: how often a query's choice holds each key; causality not looked at."""
    sequence, block = blocks_of(chosen.shape[1], block_size, cu_seqlens)
    times = (chosen.unsqueeze(-1) == block).sum(3)
    return times * (sequence.unsqueeze(1) == sequence).view(1, len(block), 1, -1)


def causal(tokens: int, shift: int = 0) -> Tensor:
    """bool [1,T,1,T]: keys up to the query's own, or so many further."""
    position = torch.arange(tokens)
    return (position <= position.unsqueeze(1) + shift).view(1, tokens, 1, tokens)


def over(
    q: Tensor, k: Tensor, v: Tensor, seen: Tensor, sm_scale: float, steps: Steps = RIGHT
) -> Tensor:
    """seen: bool [B,T,H,T]."""
    b, t, heads, _ = q.shape
    group = heads // k.shape[2]
    rows = q.transpose(1, 2).unflatten(1, (-1, group)).flatten(2, 3)
    of_rows = seen.transpose(1, 2).repeat(1, 1, group, 1)
    out = attend(rows, k.transpose(1, 2), v.transpose(1, 2), of_rows, sm_scale, steps)
    return out.view(b, heads, t, -1).transpose(1, 2).to(q.dtype).contiguous()


@right(OP)
def naive(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    block_indices: Tensor,
    cu_seqlens: Tensor | None = None,
    *,
    sm_scale: float,
    block_size: int,
    steps: Steps = RIGHT,
    shift: int | None = 0,
    places: int | None = None,
) -> Tensor:
    """shift: of the causal mask; None: there is no mask. places: of a block that are read."""
    seen = seen_by(block_indices, block_size, cu_seqlens) > 0
    if shift is not None:
        seen = seen & causal(q.shape[1], shift)
    if places is not None:
        seen = seen & (torch.arange(q.shape[1]) % block_size < places)
    return over(q, k, v, seen, sm_scale, steps)


@mutant(REPEATED, "a block given twice is read twice", "overlap-counted")
def repeated_counted_twice(q, k, v, block_indices, *, sm_scale, block_size):
    times = seen_by(block_indices, block_size) * causal(q.shape[1])
    # A second copy of the keys, for those that count twice.
    seen = torch.cat([times > 0, times > 1], -1)
    doubled = (torch.cat([x, x], 1) for x in (k, v))
    return over(q, *doubled, seen, sm_scale)


def choice(change):
    """Return a change of the chosen blocks."""
    return lambda x: {"block_indices": change(x.block_indices)}


def ended_at_none(x):
    return x.masked_fill((x < 0).cummax(-1).values, -1)


def own_block_lost(x):
    own = (torch.arange(x.shape[1]) // 64).view(1, -1, 1, 1)
    return x.masked_fill(x == own, -1)


def sequences_one_late(x):
    late = x.cu_seqlens + 1
    late[0], late[-1] = 0, x.q.shape[1]
    return {"cu_seqlens": late}


def q_heads_first(x):
    b, t, h, d = x.q.shape
    return {"q": x.q.reshape(b, h, t, d).transpose(1, 2)}


for case_, bug, diagnosis, change in (
    (RANDOM, "causality by the block", "block-not-causal", lambda x: {"shift": None}),
    (RANDOM, "< for <= in the causal mask", "own-key-lost", lambda x: {"shift": -1}),
    (RANDOM, "the causal mask is one token off", "key-beyond-end", lambda x: {"shift": 1}),
    (RANDOM, "a loop over a block ends early", "span-last-key-lost", lambda x: {"places": 63}),
    (EMPTY, "-1 is clamped to 0", "none-is-block-zero", choice(lambda x: x.clamp(min=0))),
    (RANDOM, "a row ends at its first -1", "all-zero", choice(ended_at_none)),
    (LONGER, "the last slot is not read", "last-span-lost", choice(lambda x: x[..., :-1])),
    (
        LONGER,
        "the first block is dropped",
        "block-zero-lost",
        choice(lambda x: x.masked_fill(x == 0, -1)),
    ),
    (RANDOM, "own blocks are skipped", "own-block-lost", choice(own_block_lost)),
    (
        LONGER,
        "the choice is that of KV head 0",
        "choice-of-head",
        choice(lambda x: x[:, :, :1].expand_as(x)),
    ),
    (
        LONGER,
        "V's head is not in its offset",
        "other-kv-head",
        lambda x: {"v": x.v[:, :, :1].expand_as(x.v)},
    ),
    (
        RANDOM,
        "the choice is that of the query before",
        "choice-of-query",
        choice(lambda x: x.roll(1, 1)),
    ),
    (PACKED, "cu_seqlens is not looked at", "packing-ignored", lambda x: {"cu_seqlens": None}),
    (PACKED, "sequences begin one token late", "sequence-begin", sequences_one_late),
    (SMALL, "blocks are of 64 keys", "block-size", lambda x: {"block_size": 64}),
    (LONGER, "Q is taken for [B, HQ, T, D]", "input-axes-swapped", q_heads_first),
):
    broken_inputs(case_, bug, diagnosis, change)

broken_steps(
    RANDOM,
    "keys of a block that are masked have a score of 0",
    "masked-scores-zero",
    softmax.MaskedScoresAreZero(),
)
broken_steps(
    RANDOM, "scores are scaled for exp2, weights made by exp", "log2e-extra", softmax.ExpWithLog2e()
)
heads_in_turn(LONGER)

for case_, bug, diagnosis, spoil in (
    (
        RANDOM,
        "queries beyond a multiple of 64 are not written",
        "all-zero",
        unwritten(slice(None), slice(192, None)),
    ),
    (
        RANDOM,
        "the output is written as [B, HQ, T, Dv]",
        "output-axes-swapped",
        lambda out, x: out.transpose(1, 2).reshape(out.shape).contiguous(),
    ),
    (RANDOM, "heads are written in reverse", "heads-permuted", lambda out, x: out.flip(2)),
):
    broken_output(case_, bug, diagnosis, spoil)

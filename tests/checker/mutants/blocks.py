"""selection_blocks: chosen blocks of keys, causal inside."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.checker.mutants import softmax
from tests.checker.mutants.mutant import broken_steps, case, mutant, right
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
) -> Tensor:
    seen = seen_by(block_indices, block_size, cu_seqlens) > 0
    return over(q, k, v, seen & causal(q.shape[1]), sm_scale, steps)


@mutant(RANDOM, "causality by the block", "block-not-causal")
def causal_by_block(q, k, v, block_indices, *, sm_scale, block_size):
    return over(q, k, v, seen_by(block_indices, block_size) > 0, sm_scale)


@mutant(RANDOM, "< for <= in the causal mask", "own-key-lost")
def own_key_lost(q, k, v, block_indices, *, sm_scale, block_size):
    seen = (seen_by(block_indices, block_size) > 0) & causal(q.shape[1], -1)
    return over(q, k, v, seen, sm_scale)


@mutant(RANDOM, "the causal mask is one token off", "key-beyond-end")
def one_key_ahead(q, k, v, block_indices, *, sm_scale, block_size):
    seen = (seen_by(block_indices, block_size) > 0) & causal(q.shape[1], 1)
    return over(q, k, v, seen, sm_scale)


@mutant(REPEATED, "a block given twice is read twice", "overlap-counted")
def repeated_counted_twice(q, k, v, block_indices, *, sm_scale, block_size):
    times = seen_by(block_indices, block_size) * causal(q.shape[1])
    # A second copy of the keys, for those that count twice.
    seen = torch.cat([times > 0, times > 1], -1)
    doubled = (torch.cat([x, x], 1) for x in (k, v))
    return over(q, *doubled, seen, sm_scale)


@mutant(EMPTY, "-1 is clamped to 0", "none-is-block-zero")
def none_is_block_zero(q, k, v, block_indices, *, sm_scale, block_size):
    return naive(q, k, v, block_indices.clamp(min=0), sm_scale=sm_scale, block_size=block_size)


@mutant(RANDOM, "a row ends at its first -1", "all-zero")
def ends_at_none(q, k, v, block_indices, *, sm_scale, block_size):
    ended = (block_indices < 0).cummax(-1).values
    some = block_indices.masked_fill(ended, -1)
    return naive(q, k, v, some, sm_scale=sm_scale, block_size=block_size)


@mutant(LONGER, "the last slot is not read", "last-span-lost")
def last_slot_lost(q, k, v, block_indices, *, sm_scale, block_size):
    return naive(q, k, v, block_indices[..., :-1], sm_scale=sm_scale, block_size=block_size)


@mutant(LONGER, "the first block is dropped", "block-zero-lost")
def first_block_lost(q, k, v, block_indices, *, sm_scale, block_size):
    some = block_indices.masked_fill(block_indices == 0, -1)
    return naive(q, k, v, some, sm_scale=sm_scale, block_size=block_size)


@mutant(RANDOM, "own blocks are skipped", "own-block-lost")
def own_block_lost(q, k, v, block_indices, *, sm_scale, block_size):
    own = (torch.arange(q.shape[1]) // block_size).view(1, -1, 1, 1)
    some = block_indices.masked_fill(block_indices == own, -1)
    return naive(q, k, v, some, sm_scale=sm_scale, block_size=block_size)


@mutant(LONGER, "query heads are dealt to KV heads in turn", "heads-dealt-in-turn")
def heads_dealt_in_turn(q, k, v, block_indices, *, sm_scale, block_size):
    order = torch.arange(q.shape[2]).view(-1, k.shape[2]).T.flatten()
    out = torch.empty(*q.shape[:3], v.shape[3], dtype=q.dtype)
    out[:, :, order] = naive(
        q[:, :, order], k, v, block_indices, sm_scale=sm_scale, block_size=block_size
    )
    return out


@mutant(LONGER, "the choice is that of KV head 0", "choice-of-head")
def choice_of_head_zero(q, k, v, block_indices, *, sm_scale, block_size):
    of_first = block_indices[:, :, :1].expand_as(block_indices)
    return naive(q, k, v, of_first, sm_scale=sm_scale, block_size=block_size)


@mutant(LONGER, "V's head is not in its offset", "other-kv-head")
def values_of_head_zero(q, k, v, block_indices, *, sm_scale, block_size):
    of_first = v[:, :, :1].expand_as(v)
    return naive(q, k, of_first, block_indices, sm_scale=sm_scale, block_size=block_size)


@mutant(RANDOM, "the choice is that of the query before", "choice-of-query")
def choice_of_the_query_before(q, k, v, block_indices, *, sm_scale, block_size):
    before = block_indices.roll(1, 1)
    return naive(q, k, v, before, sm_scale=sm_scale, block_size=block_size)


@mutant(PACKED, "cu_seqlens is not looked at", "packing-ignored")
def packed_taken_for_one(q, k, v, block_indices, cu_seqlens, *, sm_scale, block_size):
    return naive(q, k, v, block_indices, sm_scale=sm_scale, block_size=block_size)


@mutant(PACKED, "sequences begin one token late", "sequence-begin")
def sequences_one_late(q, k, v, block_indices, cu_seqlens, *, sm_scale, block_size):
    late = cu_seqlens + 1
    late[0], late[-1] = 0, q.shape[1]
    return naive(q, k, v, block_indices, late, sm_scale=sm_scale, block_size=block_size)


@mutant(RANDOM, "a loop over a block ends one early", "span-last-key-lost")
def last_key_of_blocks_lost(q, k, v, block_indices, *, sm_scale, block_size):
    seen = (seen_by(block_indices, block_size) > 0) & causal(q.shape[1])
    seen = seen & (torch.arange(q.shape[1]) % block_size != block_size - 1)
    return over(q, k, v, seen, sm_scale)


@mutant(SMALL, "blocks are of 64 keys", "block-size")
def blocks_of_64(q, k, v, block_indices, *, sm_scale, block_size):
    return naive(q, k, v, block_indices, sm_scale=sm_scale, block_size=64)


broken_steps(
    RANDOM,
    "keys of a block that are masked have a score of 0",
    "masked-scores-zero",
    softmax.MaskedScoresAreZero(),
)
broken_steps(
    RANDOM, "scores are scaled for exp2, weights made by exp", "log2e-extra", softmax.ExpWithLog2e()
)


@mutant(RANDOM, "queries beyond a multiple of 64 are not written", "all-zero")
def last_query_not_written(q, k, v, block_indices, *, sm_scale, block_size):
    out = naive(q, k, v, block_indices, sm_scale=sm_scale, block_size=block_size)
    out[:, 192:] = 0
    return out


@mutant(LONGER, "Q is taken for [B, HQ, T, D]", "input-axes-swapped")
def q_heads_first(q, k, v, block_indices, *, sm_scale, block_size):
    b, t, h, d = q.shape
    swapped = q.reshape(b, h, t, d).transpose(1, 2)
    return naive(swapped, k, v, block_indices, sm_scale=sm_scale, block_size=block_size)


@mutant(RANDOM, "the output is written as [B, HQ, T, Dv]", "output-axes-swapped")
def output_heads_first(q, k, v, block_indices, *, sm_scale, block_size):
    out = naive(q, k, v, block_indices, sm_scale=sm_scale, block_size=block_size)
    return out.transpose(1, 2).reshape(out.shape).contiguous()


@mutant(RANDOM, "heads are written in reverse", "heads-permuted")
def heads_reversed(q, k, v, block_indices, *, sm_scale, block_size):
    out = naive(q, k, v, block_indices, sm_scale=sm_scale, block_size=block_size)
    return out.flip(2)

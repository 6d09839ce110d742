"""Mutants of sliding_window, compressed, causal_attention, nsa_attention and the ops of
decoding."""

from dataclasses import replace

import torch

from tests.checker.mutants import kernel
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
    unwritten,
)

WINDOW = "sliding_window"
EDGE = {"B": 1, "T": 200, "HQ": 6, "H": 2, "D": 32, "Dv": 24}
NEAR = case(WINDOW, "bfloat16", window=64, **EDGE)
EXACT = case(WINDOW, "float32", window=65, **EDGE)
PACKED = case(WINDOW, "bfloat16", "packed", B=5, T=90, HQ=4, H=1, D=32, Dv=32, window=40)
LONGER = case(WINDOW, "bfloat16", B=1, T=768, HQ=2, H=1, D=32, Dv=32, window=512)


def values_by_strides_of_keys(x):
    index = sum(
        torch.arange(size).view(-1, *[1] * (3 - axis)) * x.k.stride(axis)
        for axis, size in enumerate(x.v.shape)
    )
    return {"v": x.v.reshape(-1)[index.clamp(max=x.v.numel() - 1)]}


def first_tile_whole(lo, hi):
    return lo.clamp(min=0) // 64 * 64, hi


def first_tile_skipped(lo, hi):
    return (lo.clamp(min=0) + 63) // 64 * 64, hi


broken_inputs(
    (NEAR, ">= for > at the begin", "window-size", put(window=65)),
    (LONGER, "> for >= at the begin", "window-size", put(window=511)),
    (LONGER, "the window is not looked at", "window-ignored", put(window=768)),
    (PACKED, "cu_seqlens is not looked at", "packing-ignored", put(cu_seqlens=None)),
    (PACKED, "sequences begin one token late", "sequence-begin", sequences_one_late),
    (EXACT, "scores are not scaled", "scale-missing", put(sm_scale=1.0)),
    (NEAR, "V is read with K's strides", "v-strides-of-k", values_by_strides_of_keys),
)
broken_edges(
    (NEAR, "< for <= in the causal mask", "last-key-lost", lambda lo, hi: (lo, hi - 1)),
    (NEAR, "the causal mask is one token off", "key-beyond-end", lambda lo, hi: (lo, hi + 1)),
    (LONGER, "causality by the tile", "tile-beyond-end", lambda lo, hi: (lo, (hi + 63) // 64 * 64)),
    (LONGER, "the first tile is not masked", "tile-before-begin", first_tile_whole),
    (LONGER, "the first tile is skipped unless it is full", "first-tile-lost", first_tile_skipped),
    (EXACT, "the window looks both ways", "window-both-ways", lambda lo, hi: (lo, hi + 64)),
    (NEAR, "key 0 is never read", "key-zero-lost", lambda lo, hi: (lo.clamp(min=1), hi)),
)
broken_steps(
    (NEAR, "masked scores are 0", "masked-scores-zero", kernel.MASKED_SCORES_ZERO),
    (EXACT, "weights in bfloat16", "weights-rounded", kernel.BFLOAT16_WEIGHTS),
)
heads_in_turn(NEAR)

COMPRESSED = "compressed"
SIZES = {"block": 32, "stride": 16}
KEYS = case(COMPRESSED, "bfloat16", **EDGE, **SIZES)
PRECISE = case(COMPRESSED, "float32", **EDGE, **SIZES)
SEQUENCES = case(COMPRESSED, "bfloat16", "packed", B=5, T=90, HQ=4, H=1, D=32, Dv=32, **SIZES)
MANY = case(COMPRESSED, "bfloat16", B=1, T=256, HQ=16, H=4, D=64, Dv=64, **SIZES)


def of_the_sequence_before(cu_keys):
    return torch.cat([cu_keys[:1], cu_keys[:-1]])


def empty_rows_divided(out, x):
    out[:, : x.block - 1] /= 0


def empty_rows_mean(out, x):
    mean = x.v.float().mean(1, keepdim=True).repeat_interleave(3, 2)
    out[:, : x.block - 1] = mean.to(out.dtype)


broken_inputs(
    (KEYS, "t for t + 1 tokens", "compressed-key-end", put(block=33)),
    (KEYS, "a key is seen a token early", "compressed-key-end", put(block=31)),
    (MANY, "keys are seen from their first token on", "incomplete-keys", put(block=1)),
    (KEYS, "the stride is the block", "incomplete-keys", put(block=16)),
    (SEQUENCES, "keys begin with tokens", "packing-ignored", put(cu_seqlens=None, cu_keys=None)),
    (
        SEQUENCES,
        "the keys are those of the sequence before",
        "keys-of-other-sequence",
        on("cu_keys", of_the_sequence_before),
    ),
)
broken_edges(
    (KEYS, "no causal mask", "not-causal", lambda lo, hi: (lo, lo + 200)),
    (MANY, "the newest key is left out", "last-key-lost", lambda lo, hi: (lo, hi - 1)),
    (MANY, "the first key is left out", "first-key-lost", lambda lo, hi: (lo + 1, hi)),
)
broken_outputs(
    (KEYS, "0 / 0 where no key is seen", "not-finite", empty_rows_divided),
    (KEYS, "softmax of nothing is even", "no-keys-mean", empty_rows_mean),
    (MANY, "the last head of the last token is not written", "all-zero", unwritten(0, -1, -1)),
)
broken_steps(
    (PRECISE, "weights in bfloat16", "weights-rounded", kernel.BFLOAT16_WEIGHTS),
    (KEYS, "exp2 of natural scores", "log2e-missing", kernel.EXP2_WITHOUT_LOG2E),
)
heads_in_turn(MANY)

NSA, DENSE = "nsa_attention", "causal_attention"
PARTS = {"block": 8, "stride": 4, "block_size": 16, "n_selected": 4, "window": 12}
WHOLE = case(NSA, "bfloat16", B=1, T=120, HQ=4, H=2, D=32, Dv=32, **PARTS)
WHOLE_PACKED = case(NSA, "bfloat16", "packed", B=3, T=70, HQ=4, H=2, D=32, Dv=32, **PARTS)
CAUSAL = case(DENSE, "bfloat16", B=2, T=100, HQ=4, H=2, D=32, Dv=32)
CAUSAL_PACKED = case(DENSE, "bfloat16", "packed", B=4, T=60, HQ=4, H=2, D=32, Dv=32)


def gates(change):
    return on("gates", change)


def times(*factors):
    return gates(lambda x: x * x.new_tensor(factors))


broken_inputs(
    (WHOLE, "the branch of chosen blocks is not added", "branch-lost", times(1.0, 0.0, 1.0)),
    (WHOLE, "gates are loaded and not applied", "gates-ignored", gates(torch.ones_like)),
    (WHOLE, "gates go through a sigmoid", "gates-squashed", gates(torch.sigmoid)),
    (WHOLE, "gates are read in reverse", "gates-exchanged", gates(lambda x: x.flip(-1))),
    (WHOLE, "the stride of gates by head is 0", "gates-of-head", gates(first(2))),
    (WHOLE, "> for >= at the begin", "window-size", put(window=11)),
    (WHOLE, "the last of the chosen blocks is not walked", "block-count", put(n_selected=3)),
    (WHOLE, "a key is the mean of a stride", "no-overlap", put(block=4)),
    (WHOLE_PACKED, "cu_seqlens is not looked at", "packing-ignored", put(cu_seqlens=None)),
    (CAUSAL_PACKED, "cu_seqlens is not looked at", "packing-ignored", put(cu_seqlens=None)),
)
broken_edges(
    (CAUSAL, "< for <= in the causal mask", "last-key-lost", lambda lo, hi: (lo, hi - 1)),
    (CAUSAL, "the causal mask is one token off", "key-beyond-end", lambda lo, hi: (lo, hi + 1)),
    (CAUSAL, "key 0 is never read", "first-key-lost", lambda lo, hi: (lo + 1, hi)),
    (CAUSAL, "the mask is left out", "not-causal", lambda lo, hi: (lo, lo + 100)),
    (CAUSAL, "masks tiles, not keys", "tile-beyond-end", lambda lo, hi: (lo, (hi + 31) // 32 * 32)),
)

CACHE = {"B": 2, "S": 129, "HQ": 6, "H": 2, "D": 64, "Dv": 32}
SHORT = {"B": 8, "S": 512, "HQ": 16, "H": 4, "D": 64, "Dv": 64}
LONG = {**SHORT, "B": 1, "S": 2048}
STEPS = {"block": 32, "stride": 16, "block_size": 64, "window": 100, "n_selected": 3, "S": 400}
LAST = case("decode_window", "bfloat16", "random", window=100, **CACHE)
SELECTED = case("decode_selected", "bfloat16", "random", block_size=64, n_selected=16, **LONG)
BLOCKS = case("decode_selected", "bfloat16", "random", block_size=16, n_selected=5, **CACHE)
ALL = case("decode_dense", "bfloat16", "random", **SHORT)
MEANS = case("decode_compressed", "bfloat16", "random", **SIZES, **CACHE)
STEP = case("decode_step", "float32", "random", **{**CACHE, **STEPS})


def keys(*some):
    """Return a change of the keys in the cache and their values to some of them."""
    return on("k v", lambda x: x[:, :, slice(*some)])


def ranges(change):
    return on("ranges", change)


def partial_block_lost(x):
    return torch.where(x[..., 1:] - x[..., :1] == BLOCKS.shape["block_size"], x, 0)


def tokens_first(x):
    b, h, s, _ = x.shape
    return x.reshape(b, s, h, -1).transpose(1, 2)


def a_block_fewer(sizes):
    return replace(sizes, n_selected=sizes.n_selected - 1)


broken_inputs(
    (LAST, "the window is one long", "window-size", put(window=101)),
    (LAST, "the token is not in its window", "keys-shifted", keys(-1)),
    (SELECTED, "a split of blocks is lost", "last-span-lost", ranges(lambda x: x[:, :, :-1])),
    (
        BLOCKS,
        "a block is read one key short",
        "span-last-key-lost",
        ranges(lambda x: x - torch.tensor([0, 1])),
    ),
    (BLOCKS, "the cut-off block is left out", "last-span-lost", ranges(partial_block_lost)),
    (BLOCKS, "the choice is that of head 0", "choice-of-head", ranges(first(1))),
    (ALL, "the last split of the cache is lost", "first-keys-only", keys(-128)),
    (ALL, "the cache is that of sequence 0", "other-sequence", on("k v", first(0))),
    (ALL, "the cache is taken for [B, S, H, D]", "input-axes-swapped", on("k v", tokens_first)),
    (MEANS, "the newest compressed key is not read", "last-key-lost", keys(-1)),
    (STEP, "the window is not added", "branch-lost", times(1.0, 1.0, 0.0)),
    (STEP, "gates in another order", "gates-exchanged", gates(lambda x: x[..., [0, 2, 1]])),
    (STEP, "gates are not applied", "gates-ignored", gates(torch.ones_like)),
    (STEP, "one block fewer", "block-count", on("sizes", a_block_fewer)),
)
broken_steps((MEANS, "exp of scores for exp2", "log2e-extra", kernel.EXP_WITH_LOG2E))
heads_in_turn(LAST)

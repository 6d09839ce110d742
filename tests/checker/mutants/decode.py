"""The step of one token: its branches, and the whole."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from nsabench.ops import DecodeSizes
from tests.checker.mutants import softmax
from tests.checker.mutants.mutant import broken_steps, case, mutant, right
from tests.checker.mutants.softmax import RIGHT, Steps
from tests.checker.mutants.softmax import attend as of_tiles

EDGE = {"B": 2, "S": 129, "HQ": 6, "H": 2, "D": 64, "Dv": 32}
SHORT = {"B": 8, "S": 512, "HQ": 64, "H": 4, "D": 128, "Dv": 128}
WHOLE = {"block": 32, "stride": 16, "block_size": 64, "window": 100}
WINDOW = case("decode_window", "bfloat16", "random", window=100, **EDGE)
LONG = {**SHORT, "B": 1, "S": 2048}
SELECTED = case("decode_selected", "bfloat16", "random", block_size=64, n_selected=16, **LONG)
BLOCKS = case("decode_selected", "bfloat16", "random", block_size=16, n_selected=5, **EDGE)
DENSE = case("decode_dense", "bfloat16", "random", **SHORT)
COMPRESSED = case("decode_compressed", "bfloat16", "random", block=32, stride=16, **EDGE)
STEP = case("decode_step", "float32", "random", n_selected=3, **{**EDGE, "S": 400}, **WHOLE)


def over(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sm_scale: float,
    seen: Tensor | None = None,
    steps: Steps = RIGHT,
) -> Tensor:
    """seen: bool [B,H,S]."""
    rows = q.unflatten(1, (k.shape[1], -1))
    every = torch.ones(1, 1, k.shape[2], dtype=torch.bool)
    seen = (every if seen is None else seen).unsqueeze(2)
    return of_tiles(rows, k, v, seen, sm_scale, steps).flatten(1, 2).to(q.dtype)


@right("decode_dense")
@right("decode_compressed")
def naive(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float, steps: Steps = RIGHT) -> Tensor:
    return over(q, k, v, sm_scale, steps=steps)


@right("decode_window")
def naive_window(q: Tensor, k: Tensor, v: Tensor, *, window: int, sm_scale: float) -> Tensor:
    return over(q, k[:, :, -window:], v[:, :, -window:], sm_scale)


def held(ranges: Tensor, keys: int) -> Tensor:
    position = torch.arange(keys)
    start, end = (ranges[..., i].unsqueeze(-1) for i in (0, 1))
    return ((position >= start) & (position < end)).any(-2)


@right("decode_selected")
def naive_selected(
    q: Tensor, k: Tensor, v: Tensor, ranges: Tensor, *, block_size: int, sm_scale: float
) -> Tensor:
    return over(q, k, v, sm_scale, held(ranges, k.shape[2]))


def selected(q: Tensor, k_cmp: Tensor, tokens: int, sizes: DecodeSizes, scale: float) -> Tensor:
    """bool [B,H,S]: the tokens of the blocks that a step selects."""
    rows = q.float().unflatten(1, (k_cmp.shape[1], -1))
    weights = torch.softmax(rows @ k_cmp.float().mT * scale, -1).sum(2)
    blocks = -(-tokens // sizes.block_size)
    scores = torch.zeros(*weights.shape[:2], blocks)
    for place in range(sizes.block // sizes.stride):
        block = (torch.arange(weights.shape[2]) + place) * sizes.stride // sizes.block_size
        inside = block < blocks
        scores.index_add_(2, block[inside], weights[..., inside])
    scores[..., 0] = scores[..., -2:] = torch.inf
    best = scores.sort(dim=-1, descending=True, stable=True).indices[..., : sizes.n_selected]
    keep = torch.zeros_like(scores, dtype=torch.bool).scatter_(2, best, True)
    return keep[..., torch.arange(tokens) // sizes.block_size]


@right("decode_step")
def naive_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_cmp: Tensor,
    v_cmp: Tensor,
    gates: Tensor,
    *,
    sizes: DecodeSizes,
    sm_scale: float,
) -> Tensor:
    parts = (
        over(q, k_cmp, v_cmp, sm_scale),
        over(q, k, v, sm_scale, selected(q, k_cmp, k.shape[2], sizes, sm_scale)),
        over(q, k[:, :, -sizes.window :], v[:, :, -sizes.window :], sm_scale),
    )
    return sum(gates[..., i : i + 1] * part for i, part in enumerate(parts))


@mutant(WINDOW, "the window is one long", "window-size")
def window_one_long(q, k, v, *, window, sm_scale):
    return naive_window(q, k, v, window=window + 1, sm_scale=sm_scale)


@mutant(WINDOW, "the token is not in its window", "keys-shifted")
def window_ends_early(q, k, v, *, window, sm_scale):
    return over(q, k[:, :, -window - 1 : -1], v[:, :, -window - 1 : -1], sm_scale)


@mutant(WINDOW, "query heads are dealt to KV heads in turn", "heads-dealt-in-turn")
def heads_dealt_in_turn(q, k, v, *, window, sm_scale):
    order = torch.arange(q.shape[1]).view(-1, k.shape[1]).T.flatten()
    out = torch.empty(*q.shape[:2], v.shape[3], dtype=q.dtype)
    out[:, order] = naive_window(q[:, order], k, v, window=window, sm_scale=sm_scale)
    return out


@mutant(SELECTED, "a split of blocks is lost", "last-span-lost")
def last_block_lost(q, k, v, ranges, *, block_size, sm_scale):
    return over(q, k, v, sm_scale, held(ranges[:, :, :-1], k.shape[2]))


@mutant(BLOCKS, "a block is read one key short", "span-last-key-lost")
def last_key_of_blocks_lost(q, k, v, ranges, *, block_size, sm_scale):
    return over(q, k, v, sm_scale, held(ranges - torch.tensor([0, 1]), k.shape[2]))


@mutant(BLOCKS, "the block that is cut off is left out", "last-span-lost")
def partial_block_lost(q, k, v, ranges, *, block_size, sm_scale):
    whole = ranges[..., 1:] - ranges[..., :1] == block_size
    return over(q, k, v, sm_scale, held(torch.where(whole, ranges, 0), k.shape[2]))


@mutant(BLOCKS, "the choice is that of head 0", "choice-of-head")
def choice_of_head_zero(q, k, v, ranges, *, block_size, sm_scale):
    return over(q, k, v, sm_scale, held(ranges[:, :1].expand_as(ranges), k.shape[2]))


@mutant(DENSE, "the last split of the cache is lost", "first-keys-only")
def last_split_lost(q, k, v, *, sm_scale):
    return over(q, k[:, :, :-128], v[:, :, :-128], sm_scale)


@mutant(DENSE, "the cache is that of sequence 0", "other-sequence")
def cache_of_sequence_zero(q, k, v, *, sm_scale):
    return over(q, *(x[:1].expand_as(x) for x in (k, v)), sm_scale)


@mutant(DENSE, "the cache is taken for [B, S, H, D]", "input-axes-swapped")
def cache_tokens_first(q, k, v, *, sm_scale):
    b, h, s, d = k.shape
    return over(q, *(x.reshape(b, s, h, d).transpose(1, 2) for x in (k, v)), sm_scale)


@mutant(COMPRESSED, "the newest compressed key is not read", "last-key-lost")
def newest_key_lost(q, k, v, *, sm_scale):
    return over(q, k[:, :, :-1], v[:, :, :-1], sm_scale)


broken_steps(COMPRESSED, "exp of scores for exp2", "log2e-extra", softmax.ExpWithLog2e())


@mutant(STEP, "the window is not added", "branch-lost")
def window_not_added(q, k, v, k_cmp, v_cmp, gates, **options):
    gates = gates * torch.tensor([1.0, 1.0, 0.0])
    return naive_step(q, k, v, k_cmp, v_cmp, gates, **options)


@mutant(STEP, "gates in another order", "gates-exchanged")
def gates_exchanged(q, k, v, k_cmp, v_cmp, gates, **options):
    return naive_step(q, k, v, k_cmp, v_cmp, gates[..., [0, 2, 1]], **options)


@mutant(STEP, "gates are not applied", "gates-ignored")
def gates_not_applied(q, k, v, k_cmp, v_cmp, gates, **options):
    return naive_step(q, k, v, k_cmp, v_cmp, torch.ones_like(gates), **options)


@mutant(STEP, "one block fewer", "block-count")
def one_block_fewer(*tensors, sizes, sm_scale):
    fewer = replace(sizes, n_selected=sizes.n_selected - 1)
    return naive_step(*tensors, sizes=fewer, sm_scale=sm_scale)

"""The step of one token: its branches, and the whole."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from nsabench.ops import DecodeSizes
from tests.checker.mutants import softmax
from tests.checker.mutants.mutant import broken_inputs, broken_steps, case, heads_in_turn, right
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


def keys(some):
    """Return a change of the keys and their values to some of them."""
    return lambda x: {"k": x.k[:, :, some], "v": x.v[:, :, some]}


def ranges(change):
    return lambda x: {"ranges": change(x.ranges)}


def partial_block_lost(x):
    full = x.ranges[..., 1:] - x.ranges[..., :1] == x.block_size
    return {"ranges": torch.where(full, x.ranges, 0)}


def cache_tokens_first(x):
    b, h, s, _ = x.k.shape
    k, v = (t.reshape(b, s, h, -1).transpose(1, 2) for t in (x.k, x.v))
    return {"k": k, "v": v}


for case_, bug, diagnosis, change in (
    (WINDOW, "the window is one long", "window-size", lambda x: {"window": x.window + 1}),
    (WINDOW, "the token is not in its window", "keys-shifted", keys(slice(None, -1))),
    (SELECTED, "a split of blocks is lost", "last-span-lost", ranges(lambda x: x[:, :, :-1])),
    (
        BLOCKS,
        "a block is read one key short",
        "span-last-key-lost",
        ranges(lambda x: x - torch.tensor([0, 1])),
    ),
    (BLOCKS, "the block that is cut off is left out", "last-span-lost", partial_block_lost),
    (
        BLOCKS,
        "the choice is that of head 0",
        "choice-of-head",
        ranges(lambda x: x[:, :1].expand_as(x)),
    ),
    (DENSE, "the last split of the cache is lost", "first-keys-only", keys(slice(None, -128))),
    (
        DENSE,
        "the cache is that of sequence 0",
        "other-sequence",
        lambda x: {"k": x.k[:1].expand_as(x.k), "v": x.v[:1].expand_as(x.v)},
    ),
    (DENSE, "the cache is taken for [B, S, H, D]", "input-axes-swapped", cache_tokens_first),
    (COMPRESSED, "the newest compressed key is not read", "last-key-lost", keys(slice(None, -1))),
    (
        STEP,
        "the window is not added",
        "branch-lost",
        lambda x: {"gates": x.gates * torch.tensor([1.0, 1.0, 0.0])},
    ),
    (
        STEP,
        "gates in another order",
        "gates-exchanged",
        lambda x: {"gates": x.gates[..., [0, 2, 1]]},
    ),
    (STEP, "gates are not applied", "gates-ignored", lambda x: {"gates": torch.ones_like(x.gates)}),
    (
        STEP,
        "one block fewer",
        "block-count",
        lambda x: {"sizes": replace(x.sizes, n_selected=x.sizes.n_selected - 1)},
    ),
):
    broken_inputs(case_, bug, diagnosis, change)

broken_steps(COMPRESSED, "exp of scores for exp2", "log2e-extra", softmax.ExpWithLog2e())
heads_in_turn(WINDOW)

"""How the blocks of a query are drawn (op selection_blocks): numpy, on the host.

A query sees the blocks 0 to n-1 and selects S of them, or all if n <= S. It always selects the
first block and the last two, as NSA does (arXiv 2502.11089, section 4.1). The distribution chooses
the others:

- random: evenly. So do repeated, empty_rows, packed and the distributions of values.
- local: the queries of one block agree in seven of eight choices.
- skewed: block r is chosen about 1/r times as often as the first (Zipf).
- scored: the blocks whose compressed keys score best in a text (`_draw_features`).
- dense: all blocks, so S must be large enough.
- recorded: as the layers of a trained model chose (`_recorded`), for up to 16,384 tokens.

In repeated, half of the slots repeat another slot. In empty_rows, every fourth row selects nothing.
Unused slots hold -1, and the slots are in random order. The number of selected keys does not depend
on the seed.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

from nsabench.errors import UsageError
from nsabench.ops import _recorded

DISTRIBUTIONS: tuple[str, ...] = (
    *("random", "local", "skewed", "scored", "dense"),
    *("packed", "repeated", "empty_rows", "recorded"),
)
FORCED = _recorded.FORCED
CHANGED = 8  # in `local`, one in so many choices is a query's own
WIDTH = 32  # features of a byte and of a query in `scored`
CONTEXT = 4  # bytes that a query or key of `scored` is made of
SCORES = 1 << 24  # held at a time

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]


def sequences(distribution: str, tokens: int, seed: int) -> Ints:
    """Return where sequences begin, and the end of the last. There are five if packed, else one."""
    lengths = np.array([tokens])
    if distribution == "packed" and tokens >= 16:
        most = [tokens // 2 + 1, tokens // 4 - 1, tokens // 8, 1]
        lengths = np.random.default_rng(seed).permutation([*most, tokens - sum(most)])
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)


def positions(cu_seqlens: Ints) -> Ints:
    starts = np.repeat(cu_seqlens[:-1], np.diff(cu_seqlens))
    return (np.arange(cu_seqlens[-1]) - starts).astype(np.int32)


def indices(
    distribution: str, batches: int, position: Ints, heads: int, slots: int, block: int, seed: int
) -> Ints:
    """Draw block_indices [B,T,H,S] for tokens at these positions [T] of their sequences.

    Raises `UsageError` if `dense` does not fit into the slots, or `recorded` has other sizes.
    """
    tokens = len(position)
    seen = position // block + 1
    if distribution == "dense" and seen.max() > slots:
        raise UsageError(
            f"distribution dense selects all {seen.max()} blocks of {block} keys and S is {slots}",
            f"give S {seen.max()} or more.",
        )
    rng = np.random.default_rng(seed)
    shape = (batches, tokens, heads)
    n = np.broadcast_to(seen[:, None], shape).reshape(-1)
    selection = np.broadcast_to(np.arange(slots, dtype=np.int32), (len(n), slots)).copy()
    selection[selection >= n[:, None]] = -1
    many = n > slots
    if many.any():
        forced = np.stack([n - 1, 0 * n, n - 2], 1)[:, :slots]
        count = slots - forced.shape[1]
        if distribution == "scored":
            chosen = _draw_scored(batches, position, heads, count, block, rng)
        elif distribution == "local":
            chosen = _draw_local(batches, position, heads, count, block, rng)
        elif distribution == "recorded":
            first = int(rng.integers(1 << 16))
            chosen = _recorded.choices(batches, tokens, heads, slots, block, first)
        else:
            chosen = _draw_distinct(n - FORCED, count, distribution == "skewed", rng)
        selection[many] = np.concatenate([forced, chosen], 1)[many]
    if distribution == "repeated":
        half = slots // 2
        selection[:, slots - half :] = selection[:, :half]
    elif distribution == "empty_rows":
        some = np.add.outer(np.arange(tokens), np.arange(heads)) % 4 == 0
        selection.reshape(*shape, slots)[:, some] = -1
    return rng.permuted(selection, axis=1).reshape(*shape, slots)


def _draw_distinct(others: Ints, count: int, skewed: bool, rng: np.random.Generator) -> Ints:
    """Draw `count` different ones of the blocks 1 to others[row], if there are as many."""
    rows = len(others)
    selection = np.full((rows, count), -1, dtype=np.int32)
    for j in range(count):
        if skewed:
            # Log-uniform ranks: P(r) is about proportional to 1/r.
            pick = np.exp(rng.random(rows) * np.log(np.maximum(others, 1) + 1)).astype(np.int32)
            pick = np.minimum(pick, others)
            repeats = np.arange(rows)
            for _ in range(j):
                repeats = repeats[(selection[repeats, :j] == pick[repeats, None]).any(1)]
                pick[repeats] = pick[repeats] % np.maximum(others[repeats], 1) + 1
        else:
            # Floyd's sample: one of the first m, and if it is taken already, the m-th.
            m = np.maximum(others - count + j + 1, 1)
            pick = (rng.random(rows) * m).astype(np.int32) + 1
            pick = np.where((selection[:, :j] == pick[:, None]).any(1), m, pick)
        selection[:, j] = pick
    return selection


def _draw_local(
    batches: int, position: Ints, heads: int, count: int, block: int, rng: np.random.Generator
) -> Ints:
    seen = position // block + 1
    # The choice of the first query of each block is shared by the whole block.
    first = np.flatnonzero(np.diff(seen, prepend=0) != 0)
    leader = np.cumsum(np.diff(seen, prepend=0) != 0) - 1
    lead = np.broadcast_to(seen[first][:, None], (batches, len(first), heads)).reshape(-1)
    shared = _draw_distinct(lead - FORCED, count, False, rng)
    shared = shared.reshape(batches, len(first), heads, count)[:, leader]
    shared = shared.reshape(batches * len(position) * heads, count)
    others = np.broadcast_to(seen[:, None] - FORCED, (batches, len(seen), heads)).reshape(-1, 1)
    own = (rng.random(shared.shape) * np.maximum(others, 1)).astype(np.int32) + 1
    selection = shared.copy()
    for j in range(count):
        wanted = rng.integers(CHANGED, size=len(selection)) == 0
        present = (selection == own[:, j : j + 1]).any(1)
        selection[:, j] = np.where(wanted & ~present, own[:, j], selection[:, j])
    return selection


def _draw_scored(
    batches: int, position: Ints, heads: int, count: int, block: int, rng: np.random.Generator
) -> Ints:
    selection = np.empty((batches, len(position), heads, count), dtype=np.int32)
    for b in range(batches):
        text = int(rng.integers(1 << 30))
        for h in range(heads):
            selection[b, :, h] = _find_best(position, count, block, text, rng)
    return selection.reshape(batches * len(position) * heads, count)


def _find_best(position: Ints, count: int, block: int, text: int, rng: np.random.Generator) -> Ints:
    queries, keys = _draw_features(text, len(position), rng)
    blocks = -(-len(position) // block)
    padded = np.zeros((blocks * block, WIDTH), dtype=np.float32)
    padded[: len(keys)] = keys
    compressed = padded.reshape(blocks, block, WIDTH).mean(1)
    chosen = np.zeros((len(position), count), dtype=np.int32)
    step = max(1, SCORES // blocks)
    numbers = np.arange(blocks)
    for start in range(0, len(position), step):
        scores = queries[start : start + step] @ compressed.T
        last = (position[start : start + step] // block - 1)[:, None]
        scores[(numbers >= last) | (numbers == 0)] = -np.inf
        if count < blocks:
            chosen[start : start + step] = np.argpartition(scores, -count, axis=1)[
                :, blocks - count :
            ]
    return chosen


def _draw_features(text: int, tokens: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Draw queries and keys [tokens, WIDTH] of a head that attends to similar bytes before.

    A token is the sum of random embeddings of the last CONTEXT bytes, each turned by a matrix of
    its place. These matrices differ a little between queries and keys.
    """
    source = _read_text()
    data = source[(text + np.arange(tokens)) % len(source)]
    embedding = rng.standard_normal((256, WIDTH), dtype=np.float32)[data]
    sides = []
    base = rng.standard_normal((CONTEXT, WIDTH, WIDTH), dtype=np.float32)
    for _ in range(2):
        turns = base + 0.5 * rng.standard_normal(base.shape, dtype=np.float32)
        side = np.zeros_like(embedding)
        for lag, turn in enumerate(turns):
            side[lag:] += embedding[: tokens - lag] @ turn
        sides.append(side / np.linalg.norm(side, axis=1, keepdims=True))
    return sides[0], sides[1]


@cache
def _read_text() -> NDArray[np.uint8]:
    return np.frombuffer((files(__package__) / "text.txt").read_bytes(), dtype=np.uint8)


def visible(indices: Ints, position: Ints, block: int) -> tuple[Ints, Ints]:
    """Return each row's blocks, sorted, [B,T,H,S], and how many keys of each the row sees.

    A row sees no key of a repeated, absent or future block.
    """
    ordered = np.sort(indices, axis=-1)
    keys = np.clip(position[:, None, None] + 1 - ordered * block, 0, block)
    keys[ordered < 0] = 0
    keys[..., 1:][ordered[..., 1:] == ordered[..., :-1]] = 0
    return ordered, keys

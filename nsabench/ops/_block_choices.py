"""Draw the blocks of each query (op selection_blocks) with numpy, on the host.

A query sees the blocks 0 to n-1 and has S slots: entries of block_indices, each for one block. It
selects S blocks, or all if n <= S. If S >= 3, the first block and the last two are among them, as
in NSA (arXiv 2502.11089, section 4.1). The distribution chooses the others:

- random, repeated, empty_rows, packed and distributions of values: each block with equal chance.
- local: queries of a block share their choices; each query draws about one in eight anew.
- dense: all blocks, so S must be large enough.
- recorded: blocks that layers of a trained model chose on text that was new to the model.

In repeated, half of the slots then get the blocks of the other half. In empty_rows, every fourth
row (token and KV head) selects nothing. Unused slots hold -1, and the slots are in random order.
The number of selected keys does not depend on the seed.
"""

from __future__ import annotations

import json
import lzma
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

from nsabench.errors import UsageError

DISTRIBUTIONS: tuple[str, ...] = (
    *("random", "local", "dense"),
    *("packed", "repeated", "empty_rows", "recorded"),
)
FORCED = 3  # the first block and the last two
FILE = "recorded.xz"
CHANGED = 8  # in `local`, a query draws about one of this many choices anew

Ints = NDArray[np.int32]


def bound_sequences(distribution: str, tokens: int, seed: int) -> Ints:
    """Return where sequences begin (packed: five, from 16 tokens up), and where the last ends."""
    lengths = np.array([tokens])
    if distribution == "packed" and tokens >= 16:
        most = [tokens // 2 + 1, tokens // 4 - 1, tokens // 8, 1]
        lengths = np.random.default_rng(seed).permutation([*most, tokens - sum(most)])
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)


def place_in_sequences(cu_seqlens: Ints) -> Ints:
    starts = np.repeat(cu_seqlens[:-1], np.diff(cu_seqlens))
    return (np.arange(cu_seqlens[-1]) - starts).astype(np.int32)


def draw_blocks(
    distribution: str, batches: int, position: Ints, heads: int, slots: int, block: int, seed: int
) -> Ints:
    """Draw block_indices [B,T,H,S] for tokens at these positions [T] in their sequences."""
    tokens = len(position)
    seen = position // block + 1
    rng = np.random.default_rng(seed)
    shape = (batches, tokens, heads)
    n = np.broadcast_to(seen[:, None], shape).reshape(-1)
    selection = np.broadcast_to(np.arange(slots, dtype=np.int32), (len(n), slots)).copy()
    selection[selection >= n[:, None]] = -1
    many = n > slots
    if many.any():
        forced = np.stack([n - 1, 0 * n, n - 2], 1)[:, :slots]
        count = slots - forced.shape[1]
        if distribution == "local":
            chosen = _draw_local(batches, position, heads, count, block, rng)
        elif distribution == "recorded":
            first = int(rng.integers(1 << 16))
            chosen = _repeat_recording(batches, tokens, heads, first)
        else:
            chosen = _draw_distinct(n - FORCED, count, rng)
        selection[many] = np.concatenate([forced, chosen], 1)[many]
    if distribution == "repeated":
        half = slots // 2
        selection[:, slots - half :] = selection[:, :half]
    elif distribution == "empty_rows":
        some = np.add.outer(np.arange(tokens), np.arange(heads)) % 4 == 0
        selection.reshape(*shape, slots)[:, some] = -1
    return rng.permuted(selection, axis=1).reshape(*shape, slots)


def _draw_distinct(others: Ints, count: int, rng: np.random.Generator) -> Ints:
    rows = len(others)
    selection = np.full((rows, count), -1, dtype=np.int32)
    for j in range(count):
        # Floyd's algorithm: draw one of the first m blocks. If it is taken, take the m-th.
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
    shared = _draw_distinct(lead - FORCED, count, rng)
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


def count_keys(
    distribution: str, position: Ints, heads: int, slots: int, block: int
) -> tuple[int, int]:
    """Count the pairs of query and selected key, and the keys that any query selects, in a row of
    the batch. Each KV head counts with one of its query heads."""
    own, within = position // block, position % block
    kept = slots - slots // 2 if distribution == "repeated" else slots
    # In `repeated`, a query with a slot for every block selects only the first `kept` blocks.
    has_own = (own < kept) | (own >= slots)
    keys = np.where(has_own, np.minimum(own, kept - 1) * block + within + 1, kept * block)
    selected, touched = heads * int(keys.sum()), heads * int(has_own.sum())
    if distribution == "empty_rows":
        empty = np.add.outer(np.arange(len(position)), np.arange(heads)) % 4 == 0
        selected -= int((keys.reshape(-1, 1) * empty).sum())
        touched -= int(empty[-1].sum())  # no other query sees the last key
    return selected, touched


@dataclass(frozen=True)
class Recording:
    """`chosen` [heads, tokens, bytes] has a bit for each chosen block, except forced ones."""

    block: int
    slots: int
    made: str
    chosen: NDArray[np.uint8]


def unpack_recording(data: bytes) -> Recording:
    """Read a recording. It stores each token's bytes XORed with the previous token's."""
    head, _, body = lzma.decompress(data).partition(b"\n")
    about = json.loads(head)
    changed = np.frombuffer(body, dtype=np.uint8).reshape(about["shape"])
    chosen = np.bitwise_xor.accumulate(changed, axis=1)
    return Recording(about["block"], about["slots"], about["made"], chosen)


@cache
def read_recording() -> Recording:
    return unpack_recording((files(__package__) / FILE).read_bytes())


def refuse_unrecorded(slots: int, block: int, tokens: int) -> None:
    recording = read_recording()
    longest = recording.chosen.shape[1]
    if (slots, block) != (recording.slots, recording.block) or tokens > longest:
        raise UsageError(
            f"distribution recorded holds {recording.slots} blocks of {recording.block} keys a "
            f"query for up to {longest} tokens, not {slots} of {block} for {tokens}",
            "give such sizes, or another distribution, such as local.",
        )


def _repeat_recording(batches: int, tokens: int, heads: int, first: int) -> Ints:
    """Return blocks [batches * tokens * heads, slots - 3], zeros for queries that select all."""
    recording = read_recording()  # its heads are reused cyclically, from number `first`
    free, some = recording.slots - FORCED, slice(recording.slots * recording.block, tokens)
    chosen = np.zeros((batches, heads, tokens, free), dtype=np.int32)
    for number, of_head in enumerate(chosen.reshape(-1, tokens, free)):
        rows = recording.chosen[(first + number) % len(recording.chosen), some]
        _, blocks = np.nonzero(np.unpackbits(rows, axis=1))
        of_head[some] = blocks.reshape(len(rows), free)
    return chosen.transpose(0, 2, 1, 3).reshape(-1, free)

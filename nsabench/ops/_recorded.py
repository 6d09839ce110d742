"""Choices of blocks that layers of a trained model made on text they had not seen: the distribution
`recorded`.

The file `recorded.xz` beside this holds them, and how they were made. Every KV head of every layer
has a row of bits a token, one a block: set where the head selected it of its own accord, that is
besides the first block and the last two, which every query selects. A row is stored as what changed
since the token before, since neighbours mostly agree.
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

FILE = "recorded.xz"
FORCED = 3

Ints = NDArray[np.int32]


@dataclass(frozen=True)
class Recording:
    """chosen: bits [heads, tokens, bytes], the blocks that each token's query chose itself.

    made: how it was made, in words.
    """

    block: int
    slots: int
    made: str
    chosen: NDArray[np.uint8]

    @property
    def tokens(self) -> int:
        return int(self.chosen.shape[1])

    def others(self, head: int, tokens: int) -> Ints:
        """[rows, slots - 3]: blocks besides the forced ones, of each of the first `tokens` tokens
        that sees more than `slots` blocks."""
        rows = self.chosen[head % len(self.chosen), self.slots * self.block : tokens]
        _, blocks = np.nonzero(np.unpackbits(rows, axis=1))
        return blocks.astype(np.int32).reshape(len(rows), self.slots - FORCED)


def of_selection(selection: Ints, block: int, made: str) -> Recording:
    """A recording of block_indices [heads, T, S], each row with the forced blocks, -1 for none.

    Raises `ValueError` where a row that sees more than S blocks does not hold S different ones,
    the first and its last two among them.
    """
    heads, tokens, slots = selection.shape
    last = np.arange(tokens) // block
    bits = np.zeros((heads, tokens, last[-1] + 1), dtype=bool)
    head, token, slot = np.nonzero(selection >= 0)
    bits[head, token, selection[head, token, slot]] = True
    rows = np.arange(slots * block, tokens)
    own = last[rows]
    forced = bits[:, rows, own] & bits[:, rows, own - 1] & bits[:, rows, 0]
    if not forced.all() or not (bits[:, rows].sum(-1) == slots).all():
        raise ValueError(f"a row holds no {slots} different blocks, the forced ones among them")
    bits[:, rows, own] = bits[:, rows, own - 1] = bits[:, rows, 0] = False
    bits[:, : slots * block] = False
    return Recording(block, slots, made, np.packbits(bits, axis=-1))


def pack(recording: Recording) -> bytes:
    """A recording as `unpack` takes it."""
    chosen = recording.chosen
    about = {
        "block": recording.block,
        "slots": recording.slots,
        "made": recording.made,
        "shape": chosen.shape,
    }
    changed = chosen.copy()
    changed[:, 1:] ^= chosen[:, :-1]
    plain = json.dumps(about, sort_keys=True).encode() + b"\n" + changed.tobytes()
    return lzma.compress(plain, preset=9 | lzma.PRESET_EXTREME)


def unpack(data: bytes) -> Recording:
    head, _, body = lzma.decompress(data).partition(b"\n")
    about = json.loads(head)
    changed = np.frombuffer(body, dtype=np.uint8).reshape(about["shape"])
    chosen = np.bitwise_xor.accumulate(changed, axis=1)
    return Recording(about["block"], about["slots"], about["made"], chosen)


@cache
def shipped() -> Recording:
    return unpack((files(__package__) / FILE).read_bytes())


def choices(batches: int, tokens: int, heads: int, slots: int, block: int, first: int) -> Ints:
    """[batches * tokens * heads, slots - 3], zeros where all blocks are selected; head number
    `first` of the recording comes first, and after the last comes the first again.

    Raises `UsageError` where the recording is of other sizes.
    """
    recording = shipped()
    if (slots, block) != (recording.slots, recording.block) or tokens > recording.tokens:
        raise UsageError(
            f"distribution recorded holds {recording.slots} blocks of {recording.block} keys a "
            f"query for up to {recording.tokens} tokens, not {slots} of {block} for {tokens}",
            "give such sizes, or another distribution, such as local.",
        )
    chosen = np.zeros((batches, tokens, heads, slots - FORCED), dtype=np.int32)
    for b in range(batches):
        for h in range(heads):
            chosen[b, slots * block :, h] = recording.others(first + b * heads + h, tokens)
    return chosen.reshape(-1, slots - FORCED)


def agreement(recording: Recording, neighbours: int) -> float:
    """How many different blocks so many consecutive queries choose together, forced ones included;
    the mean over heads and stretches."""
    begin = recording.slots * recording.block
    rows = np.unpackbits(recording.chosen, axis=-1)[:, begin:].astype(bool)
    own = np.arange(begin, recording.tokens) // recording.block
    at = np.arange(len(own))
    rows[:, at, own] = rows[:, at, own - 1] = rows[:, at, 0] = True
    usable = len(own) // neighbours * neighbours
    together = rows[:, :usable].reshape(len(rows), -1, neighbours, rows.shape[2]).any(2)
    return float(together.sum(-1).mean())

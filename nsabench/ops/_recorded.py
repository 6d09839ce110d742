"""The distribution `recorded`: blocks that layers of a trained model chose on text new to them.

`recorded.xz` holds a row of bits for each KV head and token. A bit is set if the head chose that
block besides the three forced ones. Each row is stored as its difference from the row before.
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
    """chosen: bits [heads, tokens, bytes]. made: how the recording was made, in words."""

    block: int
    slots: int
    made: str
    chosen: NDArray[np.uint8]

    @property
    def tokens(self) -> int:
        return int(self.chosen.shape[1])

    def others(self, head: int, tokens: int) -> Ints:
        """Return the blocks besides the forced ones of tokens that see more than `slots` blocks."""
        rows = self.chosen[head % len(self.chosen), self.slots * self.block : tokens]
        _, blocks = np.nonzero(np.unpackbits(rows, axis=1))
        return blocks.astype(np.int32).reshape(len(rows), self.slots - FORCED)


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
    """Return blocks [batches * tokens * heads, slots - 3], zeros where a query selects all.

    Heads are taken from number `first`, in a circle. Raises `UsageError` for other sizes.
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

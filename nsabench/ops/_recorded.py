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


def unpack(data: bytes) -> Recording:
    head, _, body = lzma.decompress(data).partition(b"\n")
    about = json.loads(head)
    changed = np.frombuffer(body, dtype=np.uint8).reshape(about["shape"])
    chosen = np.bitwise_xor.accumulate(changed, axis=1)
    return Recording(about["block"], about["slots"], about["made"], chosen)


@cache
def shipped() -> Recording:
    return unpack((files(__package__) / FILE).read_bytes())


def refuse_misfit(slots: int, block: int, tokens: int) -> None:
    recording = shipped()
    longest = recording.chosen.shape[1]
    if (slots, block) != (recording.slots, recording.block) or tokens > longest:
        raise UsageError(
            f"distribution recorded holds {recording.slots} blocks of {recording.block} keys a "
            f"query for up to {longest} tokens, not {slots} of {block} for {tokens}",
            "give such sizes, or another distribution, such as local.",
        )


def choices(batches: int, tokens: int, heads: int, first: int) -> Ints:
    """Return blocks [batches * tokens * heads, slots - 3], zeros where a query selects all.

    Heads are taken from number `first`, in a circle.
    """
    recording = shipped()
    free, some = recording.slots - FORCED, slice(recording.slots * recording.block, tokens)
    chosen = np.zeros((batches, heads, tokens, free), dtype=np.int32)
    for number, of_head in enumerate(chosen.reshape(-1, tokens, free)):
        rows = recording.chosen[(first + number) % len(recording.chosen), some]
        _, blocks = np.nonzero(np.unpackbits(rows, axis=1))
        of_head[some] = blocks.reshape(len(rows), free)
    return chosen.transpose(0, 2, 1, 3).reshape(-1, free)

"""Make recordings of chosen blocks (the distribution `recorded` of block selection)."""

import json
import lzma

import numpy as np

from nsabench.ops._block_choices import Recording


def of_selection(selection, block, made):
    """Make a recording of block_indices [heads, T, S], where -1 stands for no block.

    Raises `ValueError` if a row that sees more than S blocks does not hold S different ones, with
    the first block and the row's last two among them.
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


def pack(recording):
    """Return a recording as the bytes that `_block_choices.unpack_recording` reads."""
    chosen = recording.chosen
    about = {name: getattr(recording, name) for name in ("block", "slots", "made")}
    about["shape"] = chosen.shape
    changed = chosen.copy()
    changed[:, 1:] ^= chosen[:, :-1]
    plain = json.dumps(about, sort_keys=True).encode() + b"\n" + changed.tobytes()
    return lzma.compress(plain, preset=9 | lzma.PRESET_EXTREME)


def agreement(recording, neighbours):
    """Return how many different blocks `neighbours` consecutive queries choose together, with the
    first block and their last two: the mean over heads and such queries."""
    begin = recording.slots * recording.block
    rows = np.unpackbits(recording.chosen, axis=-1)[:, begin:].astype(bool)
    own = np.arange(begin, recording.chosen.shape[1]) // recording.block
    at = np.arange(len(own))
    rows[:, at, own] = rows[:, at, own - 1] = rows[:, at, 0] = True
    usable = len(own) // neighbours * neighbours
    together = rows[:, :usable].reshape(len(rows), -1, neighbours, rows.shape[2]).any(2)
    return float(together.sum(-1).mean())

"""Compute exact sums of the bits of tensors, which tell whether one has changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

_add = np.add  # bound before foreign code is imported

FOLD = 1021  # prime: no layout of heads, keys or dimensions lines up with it
WORD_BYTES = 8
GATHERED_BYTES = 8 << 20  # to copy a larger tensor takes longer than to launch its sums
BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


class Cut(NamedTuple):
    """The bits of a tensor: rows of `FOLD` words, the words after the last row, and the rest."""

    folded: Tensor
    words: Tensor
    rest: Tensor

    @property
    def ends(self) -> list[Tensor]:
        return [self.words, self.rest.long()] if self.rest.numel() else [self.words]

    @property
    def is_gathered(self) -> bool:
        return bool(self.folded.is_cuda and 0 < self.folded.nbytes <= GATHERED_BYTES)


class Sums:
    """Sums of sets of tensors, which change with one element, and with two in a row or a column.

    Small tensors are summed together, since to launch their sums takes longer than to compute them.

    sets: of one length, with tensors of the same shapes in the same order.
    """

    def __init__(self, *sets: Sequence[Tensor]) -> None:
        self._sets = len(sets)
        self._tensors = [tensor for tensors in sets for tensor in tensors]
        self._cuts: list[Cut] = []
        self._places: Sequence[object] = []

    def now(self) -> Tensor:
        """Return the sums of the current values, a row for each set."""
        cuts = self._cut_all()
        sums, gathered = [], [cut.folded for cut in cuts if cut.is_gathered]
        if gathered:
            sums += _sum_folds(torch.cat(gathered).view(self._sets, -1, FOLD))
        each = len(cuts) // self._sets
        for first in range(each):
            if not cuts[first].is_gathered:
                alike = [_sum_folds(cut.folded[None]) for cut in cuts[first::each]]
                sums += map(torch.cat, zip(*alike, strict=True))
        ends = torch.cat([end for cut in cuts for end in cut.ends])
        return torch.cat([*sums, ends.view(self._sets, ends.numel() // self._sets)], 1)

    def _cut_all(self) -> list[Cut]:
        places = [(t.data_ptr(), t.shape, t.stride()) for t in self._tensors]
        if self._places == places:
            return self._cuts
        cuts = [_cut(tensor) for tensor in self._tensors]
        if all(map(_is_view, cuts, self._tensors)):  # a copy would keep old values
            self._cuts, self._places = cuts, places
        return cuts


def _cut(tensor: Tensor) -> Cut:
    """Cut into words of 64 bits: torch would copy narrower ones to 64 bits before it sums them."""
    bits = tensor.view(BITS[tensor.element_size()]).reshape(-1).contiguous()
    if bits.data_ptr() % WORD_BYTES or bits.storage_offset() * bits.element_size() % WORD_BYTES:
        bits = bits.clone()
    in_a_word = WORD_BYTES // bits.element_size()
    whole = bits.numel() // in_a_word * in_a_word
    words = bits[:whole].view(torch.int64)
    in_rows = words.numel() // FOLD * FOLD
    return Cut(words[:in_rows].view(-1, FOLD), words[in_rows:], bits[whole:])


def _is_view(cut: Cut, tensor: Tensor) -> bool:
    own = tensor.untyped_storage().data_ptr()
    return all(part.untyped_storage().data_ptr() == own for part in cut)


def _sum_folds(folds: Tensor) -> list[Tensor]:
    """Return the sums of each column and of each row of each fold, modulo 2**64."""
    if not folds.numel():
        return []
    if folds.device.type == "cpu":  # torch's own sums take up to nine times as long there
        array = folds.numpy()
        return [torch.from_numpy(_add.reduce(array, axis=axis)) for axis in (1, 2)]
    return [folds.sum(1), folds.sum(2)]

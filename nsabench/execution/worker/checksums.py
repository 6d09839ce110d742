"""Exact sums of the bits of tensors: whether one holds other values than it did."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

_add = np.add  # bound before foreign code is imported

FOLD = 1021  # prime: no layout of heads, keys or dimensions lines up with it
WORD_BYTES = 8


def checksum(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Sums of each tensor's bits along rows and columns of a fold, by name; of what is too short to
    be folded, the bits themselves.

    Cheap and exact; it changes with any one element, and with elements that change places.
    """
    return {name: torch.cat(Cut.of(t).sums()) for name, t in tensors.items()}


@dataclass(frozen=True)
class Cut:
    """A tensor's bits: words of 64 as rows of a fold, the words that fill no row, and what fills no
    word. address: where the tensor began."""

    address: int
    folded: Tensor
    words: Tensor
    rest: Tensor

    @classmethod
    def of(cls, tensor: Tensor) -> Cut:
        words, rest = _words(tensor.view(_BITS[tensor.element_size()]).reshape(-1))
        rows = words.numel() // FOLD
        folded = words[: rows * FOLD].view(-1, FOLD)
        return cls(tensor.data_ptr(), folded, words[rows * FOLD :], rest)

    def lies_in(self, tensor: Tensor) -> bool:
        """Whether it is memory of the tensor, and no copy."""
        own = tensor.untyped_storage().data_ptr()
        return self.address == tensor.data_ptr() and all(
            t.untyped_storage().data_ptr() == own for t in (self.words, self.rest)
        )

    def sums(self) -> list[Tensor]:
        """Along rows and columns, and behind them the bits that are in neither."""
        ends = [self.words, self.rest.long()] if self.rest.numel() else [self.words]
        if not self.folded.numel():  # there is nothing to fold
            return ends
        if self.folded.device.type == "cpu":  # torch's own sums take up to nine times as long there
            folded = self.folded.numpy()
            return [*(torch.from_numpy(_add.reduce(folded, axis=axis)) for axis in (0, 1)), *ends]
        return [self.folded.sum(0), self.folded.sum(1), *ends]


def _words(bits: Tensor) -> tuple[Tensor, Tensor]:
    """The same as words of 64 bits, and what does not fill one: what is narrower would be copied to
    64 bits before it is summed, and the copy takes four times the memory."""
    if bits.data_ptr() % WORD_BYTES or bits.storage_offset() * bits.element_size() % WORD_BYTES:
        bits = bits.clone()
    in_one = WORD_BYTES // bits.element_size()
    whole = bits.numel() // in_one * in_one
    return bits[:whole].view(torch.int64), bits[whole:]


_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}

"""Exact sums of the bits of tensors: whether one holds other values than it did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

_add = np.add  # bound before foreign code is imported

FOLD = 1021  # prime: no layout of heads, keys or dimensions lines up with it
WORD_BYTES = 8
# What is larger takes a GPU longer to copy than its host to launch its sums.
GATHERED_BYTES = 8 << 20


def checksum(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Sums of each tensor's bits along rows and columns of a fold, by name; of what is too short to
    be folded, the bits themselves.

    Cheap and exact; it changes with any one element, and with elements that change places.
    """
    return {name: torch.cat(Cut.of(t).sums()) for name, t in tensors.items()}


Place = tuple[int, torch.Size, tuple[int, ...]]


def place(tensor: Tensor) -> Place:
    """Where a tensor lies, and how."""
    return tensor.data_ptr(), tensor.shape, tensor.stride()


@dataclass(frozen=True)
class Cut:
    """A tensor's bits: words of 64 as rows of a fold, the words that fill no row, and what fills no
    word. place: where and how the tensor lay."""

    place: Place
    folded: Tensor
    words: Tensor
    rest: Tensor

    @property
    def is_gathered(self) -> bool:
        """Whether its fold is summed together with those of others."""
        return bool(self.folded.is_cuda and 0 < self.folded.nbytes <= GATHERED_BYTES)

    @classmethod
    def of(cls, tensor: Tensor) -> Cut:
        bits = tensor.view(_BITS[tensor.element_size()])
        words, rest = _words(bits.reshape(-1).contiguous())  # of one stride it would be a view
        rows = words.numel() // FOLD
        folded = words[: rows * FOLD].view(-1, FOLD)
        return cls(place(tensor), folded, words[rows * FOLD :], rest)

    def lies_in(self, tensor: Tensor) -> bool:
        """Whether it is memory of the tensor, and no copy."""
        own = tensor.untyped_storage().data_ptr()
        return all(t.untyped_storage().data_ptr() == own for t in (self.words, self.rest))

    def ends(self) -> list[Tensor]:
        """The bits that are in no row."""
        return [self.words, self.rest.long()] if self.rest.numel() else [self.words]

    def sums(self) -> list[Tensor]:
        """Of each column and of each row, and behind them the bits that are in neither."""
        ends = self.ends()
        if not self.folded.numel():  # there is nothing to fold
            return ends
        if self.folded.device.type == "cpu":  # torch's own sums take up to nine times as long there
            folded = self.folded.numpy()
            return [*(torch.from_numpy(_add.reduce(folded, axis=axis)) for axis in (0, 1)), *ends]
        return [self.folded.sum(0), self.folded.sum(1), *ends]


@dataclass(frozen=True)
class Part:
    """What some of several tensors add to the sums of all: of those that are gathered the columns,
    the rows and what is in neither, and the sums of the others."""

    columns: Tensor
    rows: Tensor
    ends: Tensor
    others: Tensor

    @staticmethod
    def joined(parts: Sequence[Part]) -> Tensor:
        """What `Sums.now` returns of their tensors, those of the first part first."""
        columns = [part.columns for part in parts if len(part.columns)]
        whole = [torch.stack(columns).sum(0)] if columns else []
        for name in ("rows", "ends", "others"):
            whole += [getattr(part, name) for part in parts]
        return torch.cat(whole)


class Sums:
    """The checksums of many tensors that stay where they are, asked for again and again.

    To launch the sums takes the host of a GPU longer than they take the GPU, unless the tensors are
    large. So the folds of those that are not are copied behind one another and summed at once:
    each row by itself, and each column of all. No change of one element can hide, nor one of two in
    a row or a column; changes in several tensors could make up for one another.
    """

    def __init__(self) -> None:
        self._cuts: dict[int, Cut] = {}  # by the id of a tensor

    def now(self, tensors: Sequence[Tensor]) -> Tensor:
        """The sums as they are now, laid out as by `Part.joined`."""
        cuts = [self._cut(tensor) for tensor in tensors]
        sums: list[Tensor] = []
        if gathered := [cut for cut in cuts if cut.is_gathered]:
            folded = torch.cat([cut.folded for cut in gathered])
            sums = [folded.sum(0), folded.sum(1), *(end for cut in gathered for end in cut.ends())]
        return torch.cat(sums + [s for cut in cuts if not cut.is_gathered for s in cut.sums()])

    def part(self, tensors: Sequence[Tensor], checksums: Sequence[Tensor]) -> Part:
        """The share of some tensors in the sums of all, from their `checksum`s."""
        columns, rows, ends, others = [], [], [], []
        for tensor, sums in zip(tensors, checksums, strict=True):
            cut = self._cut(tensor)
            if cut.is_gathered:
                last = FOLD + len(cut.folded)
                columns.append(sums[:FOLD])
                rows.append(sums[FOLD:last])
                ends.append(sums[last:])
            else:
                others.append(sums)
        none = torch.cat([one[:0] for one in checksums])
        return Part(
            torch.stack(columns).sum(0) if columns else none,
            *(torch.cat(sums) if sums else none for sums in (rows, ends, others)),
        )

    def _cut(self, tensor: Tensor) -> Cut:
        cut = self._cuts.get(id(tensor))
        if cut is not None and cut.place == place(tensor):
            return cut
        cut = Cut.of(tensor)
        if cut.lies_in(tensor):  # a copy would be the same ever after
            self._cuts[id(tensor)] = cut
        return cut


def _words(bits: Tensor) -> tuple[Tensor, Tensor]:
    """The same as words of 64 bits, and what does not fill one: what is narrower would be copied to
    64 bits before it is summed, and the copy takes four times the memory."""
    if bits.data_ptr() % WORD_BYTES or bits.storage_offset() * bits.element_size() % WORD_BYTES:
        bits = bits.clone()
    in_one = WORD_BYTES // bits.element_size()
    whole = bits.numel() // in_one * in_one
    return bits[:whole].view(torch.int64), bits[whole:]


_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}

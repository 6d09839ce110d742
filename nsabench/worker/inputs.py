"""Keep several sets of inputs of a case; values move between sets, addresses do not.

Exact sums of the bits of all tensors tell whether one has changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from random import Random
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from nsabench import ops
from nsabench.delivery import OUTPUT, Form, draw
from nsabench.model.case import Case
from nsabench.ops import Inputs, Probe

_add = np.add  # bound before foreign code is imported

FOLD = 1021  # words in a row; a prime, so that no layout of heads or keys lines up with it
WORD_BYTES = 8
GATHERED_BYTES = 8 << 20  # larger tensors are summed alone: a copy takes longer than a launch
BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
CHUNK_BYTES = 256 << 20  # bytes that are copied at a time
INPUT, GRADIENT = "its input ", "the gradient of its output"
POISONED_BYTES = 32 << 20  # `poison` fills at most this much beyond the results of one call


class InputSets:
    """Sets of tensors that exchange values. `ids[i]` is the set whose values are at place i."""

    def __init__(
        self,
        case: Case,
        seeds: Sequence[int],
        form: Form,
        device: str,
        named_probe: tuple[str, Probe | None] = ("", None),
    ) -> None:
        self._case, self._device = case, device
        self.probe, self._probe = named_probe
        self.form = form
        self.is_written_to = False  # an input changed between two checks
        op = ops.get(case.op)
        self.wanted = op.differentiable if case.direction.differentiates else ()
        self.results = tuple(f"d{name}" for name in self.wanted) or (OUTPUT,)
        self.ids = list(range(form.sets))
        self._seeds = list(seeds[: form.sets])
        self.sets: list[Inputs] = []
        self.grads: list[Tensor] = []
        for seed in self._seeds:
            inputs, grad_out = draw(case, seed, device, self._probe)
            self.sets.append(inputs)
            if grad_out is not None:
                self.grads.append(grad_out.contiguous())
        self._sums = Sums(*([*self._protected(index).values()] for index in self.ids))
        self._right_sums = [*self._sums.now()]

    def _protected(self, index: int) -> dict[str, Tensor]:
        """Return the tensors that no call may write to, by their names in a reason."""
        protected = {INPUT + name: t for name, t in self.sets[index].tensors.items()}
        return protected | ({GRADIENT: self.grads[index]} if self.grads else {})

    @property
    def nbytes(self) -> int:
        return int(sum(t.nbytes for t in self._protected(0).values())) + self.form.nbytes

    def __len__(self) -> int:
        return len(self.sets)

    def swap(self, i: int, rng: Random) -> None:
        j = rng.choice([other for other in range(len(self.sets)) if other != i])
        others = self._protected(j)
        for name, tensor in self._protected(i).items():
            _exchange_values(tensor, others[name])
        for values in (self._right_sums, self._seeds, self.ids):
            values[i], values[j] = values[j], values[i]

    def _find_changes(self) -> dict[int, dict[str, Tensor]]:
        """Return the right values of all changed tensors, by place and name."""
        sums = self._sums.now()
        right = torch.stack(self._right_sums)
        if torch.equal(sums, right):  # the host waits for the device once
            return {}
        changes = {}
        for index in (sums != right).any(1).nonzero().flatten().tolist():
            changes[index] = self._find_changes_of(index)
            if not changes[index]:  # the stored sums were changed, not the tensors
                self._right_sums[index] = sums[index]
        return {index: changed for index, changed in changes.items() if changed}

    def _find_changes_of(self, index: int) -> dict[str, Tensor]:
        inputs, grad_out = draw(self._case, self._seeds[index], self._device, self._probe)
        right = {INPUT + name: tensor for name, tensor in inputs.tensors.items()}
        if grad_out is not None:
            right[GRADIENT] = grad_out
        actual = self._protected(index)
        return {
            name: t for name, t in right.items() if not torch.equal(_bits(t), _bits(actual[name]))
        }

    def find_change(self) -> str:
        """Return the name of a changed tensor ("its input q"), or an empty string."""
        return next((name for changed in self._find_changes().values() for name in changed), "")

    def repair(self) -> bool:
        changes = self._find_changes()
        for index, changed in changes.items():
            actual = self._protected(index)
            for name, right in changed.items():
                # A write to `.data` keeps the tensor's version, by which code may cache.
                actual[name].data.copy_(right)
        return bool(changes)

    def repair_and_flag(self) -> None:
        if self.repair():
            self.is_written_to = True


def _bits(tensor: Tensor) -> Tensor:
    return tensor.view(BITS[tensor.element_size()])


def _exchange_values(a: Tensor, b: Tensor) -> None:
    """Exchange values in stream order, without raising the tensors' version counters."""
    most = CHUNK_BYTES // a.element_size()
    for x, y in zip(a.data.view(-1).split(most), b.data.view(-1).split(most), strict=True):
        saved = x.clone()
        x.copy_(y)
        y.copy_(saved)


def poison(form: Form, device: str, calls: int = 1) -> None:
    """Leave NaN where the allocator will put results of `calls` calls (of fewer, if large)."""
    dtype = getattr(torch, form.dtype)
    nbytes = sum(map(prod, form.results.values())) * dtype.itemsize
    # Allocate all at once: one after another, all would get the same memory.
    poisoned = [
        torch.full(shape, float("nan"), dtype=dtype, device=device)
        for _ in range(1 + min(calls, POISONED_BYTES // max(nbytes, 1)))
        for shape in form.results.values()
    ]
    del poisoned


class Cut(NamedTuple):
    """The bits of a tensor: rows of `FOLD` words, the other words, and less than a word."""

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
    """Sums of the bits of sets of tensors. They show if one element changes, or two are exchanged.
    All `sets` have tensors of the same shapes in the same order."""

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
    """Cut a tensor into words of 64 bits: torch would widen narrower words before it sums them."""
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
    """Return the sums of columns and of rows of `folds` [sets,rows,FOLD], modulo 2**64."""
    if not folds.numel():
        return []
    if folds.device.type == "cpu":  # torch's own sums take far longer there
        array = folds.numpy()
        return [torch.from_numpy(_add.reduce(array, axis=axis)) for axis in (1, 2)]
    return [folds.sum(1), folds.sum(2)]

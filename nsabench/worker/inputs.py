"""Several sets of inputs of a case; data moves between them, addresses stay."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from random import Random
from typing import Any

import torch
from torch import Tensor

from nsabench import ops
from nsabench.delivery import OUTPUT, Form, draw
from nsabench.machine.clock import now_s
from nsabench.model.case import Case
from nsabench.ops import Inputs
from nsabench.worker.checksums import BITS, Sums

_amax = torch.amax  # bound before foreign code is imported

CHUNK_BYTES = 256 << 20  # of what is copied at a time
# What a set holds, as a reason calls it.
INPUT, GRADIENT = "its input ", "the gradient of its output"
POISONED_BYTES = 32 << 20  # of results beyond the first, that a call may find unwritten


class InputSets:
    """The sets of inputs that a case is measured on: as many as the checker has oracles for.

    - ids: which of the drawn sets each place holds now.
    - grads: the gradient of the output for each place, if the case differentiates.
    - wanted: the inputs that it differentiates by. results: what a call returns, by name.
    """

    def __init__(self, case: Case, seeds: Sequence[int], form: Form, device: str) -> None:
        self._case, self._device = case, device
        self.form = form
        self.next = 0  # the place of the call that was last made ready
        self.ready_s = 0.0  # when it was
        self.is_written_to = False  # an input changed between two checks
        op = ops.get(case.op)
        self.wanted = op.differentiable if case.direction.differentiates else ()
        self.results = tuple(f"d{name}" for name in self.wanted) or (OUTPUT,)
        self.ids = list(range(form.sets))
        self._seeds = list(seeds[: form.sets])
        self.sets: list[Inputs] = []
        self.grads: list[Tensor] = []
        for seed in self._seeds:
            inputs, grad_out = draw(case, seed, device)
            self.sets.append(inputs)
            if grad_out is not None:
                self.grads.append(grad_out.contiguous())
        self._sums = Sums(*([*self._protected(index).values()] for index in self.ids))
        self._right_sums = [*self._sums.now()]

    def made_ready(self, index: int) -> None:
        """The next call is on this set."""
        self.next, self.ready_s = index, now_s()

    def touch(self) -> None:
        """Read what a model has just written or read when it calls: all inputs except the first."""
        streams = self._case.streams > 1
        for inputs in self.sets if streams else [self.sets[self.next]]:
            for tensor in list(inputs.tensors.values())[1:]:
                if tensor.numel():
                    _amax(tensor)

    def _protected(self, index: int) -> dict[str, Tensor]:
        """Return what no call may write to, by what a reason calls it."""
        protected = {INPUT + name: t for name, t in self.sets[index].tensors.items()}
        return protected | ({GRADIENT: self.grads[index]} if self.grads else {})

    @property
    def nbytes(self) -> int:
        """Bytes that one set and the results of a call on it take."""
        return int(sum(t.nbytes for t in self._protected(0).values())) + self.form.nbytes

    def __len__(self) -> int:
        return len(self.sets)

    def swap(self, i: int, rng: Random) -> None:
        """Exchange the values at place i and at another place."""
        j = rng.choice([other for other in range(len(self.sets)) if other != i])
        others = self._protected(j)
        for name, tensor in self._protected(i).items():
            _exchange_values(tensor, others[name])
        for items in (self._right_sums, self._seeds, self.ids):
            _exchange(items, i, j)

    def _find_changes(self) -> dict[int, dict[str, Tensor]]:
        """Return by set and name the right values of what changed."""
        sums = self._sums.now()
        # The host waits for the device once, and finds out what changed only if something did.
        right = torch.stack(self._right_sums)
        if torch.equal(sums, right):
            return {}
        changes = {}
        for index in (sums != right).any(1).nonzero().flatten().tolist():
            changes[index] = self._find_changes_of(index)
            if not changes[index]:  # the sums that were kept are what changed
                self._right_sums[index] = sums[index]
        return {index: changed for index, changed in changes.items() if changed}

    def _find_changes_of(self, index: int) -> dict[str, Tensor]:
        inputs, grad_out = draw(self._case, self._seeds[index], self._device)
        right = {INPUT + name: tensor for name, tensor in inputs.tensors.items()}
        if grad_out is not None:
            right[GRADIENT] = grad_out
        held = self._protected(index)
        return {
            what: t for what, t in right.items() if not torch.equal(_bits(t), _bits(held[what]))
        }

    def any_changed(self) -> str:
        """Return what does not hold the values that it should ("its input q"), or ''."""
        return next((what for changed in self._find_changes().values() for what in changed), "")

    def repair(self) -> bool:
        """Restore what does not hold the values that it should. Return whether anything did not."""
        changes = self._find_changes()
        for index, changed in changes.items():
            held = self._protected(index)
            for what, right in changed.items():
                # Through `.data`, or a cache keyed on a tensor's version would know of it.
                held[what].data.copy_(right)
        return bool(changes)

    def repair_and_flag(self) -> None:
        """Repair what an unchecked call changed, and have all later calls checked."""
        if self.repair():
            self.is_written_to = True


def _bits(tensor: Tensor) -> Tensor:
    return tensor.view(BITS[tensor.element_size()])


def _exchange(items: list[Any], i: int, j: int) -> None:
    items[i], items[j] = items[j], items[i]


def _exchange_values(a: Tensor, b: Tensor) -> None:
    """In stream order, past the tensors' version counters, with little memory beside them."""
    most = CHUNK_BYTES // a.element_size()
    for x, y in zip(a.data.view(-1).split(most), b.data.view(-1).split(most), strict=True):
        saved = x.clone()
        x.copy_(y)
        y.copy_(saved)


def poison(form: Form, device: str, calls: int = 1) -> None:
    """Leave NaN where the allocator will put the results of so many calls, and of one more.

    If results are large, only for fewer calls.
    """
    dtype = getattr(torch, form.dtype)
    nbytes = sum(map(prod, form.results.values())) * dtype.itemsize
    # All at once: one after the other, each would get the memory of the one before.
    poisoned = [
        torch.full(shape, float("nan"), dtype=dtype, device=device)
        for _ in range(1 + min(calls, POISONED_BYTES // max(nbytes, 1)))
        for shape in form.results.values()
    ]
    del poisoned

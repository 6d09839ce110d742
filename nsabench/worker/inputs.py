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
from nsabench.worker.checksums import Part, Sums, checksum

_amax = torch.amax  # bound before foreign code is imported

CHUNK_BYTES = 256 << 20  # of what is copied at a time
# What a set holds, as a reason calls it.
INPUT, GRADIENT = "its input ", "the gradient of its output"
POISONED_BYTES = 32 << 20  # of results beyond the first, that a call may find unwritten


class InputSets:
    """The sets of inputs that a case is measured on: as many as the checker has oracles for.

    form: that of the results of a call. ids: which of the drawn sets each place holds now; calls
    on a place before and after an exchange find other data at the same addresses.
    """

    def __init__(self, case: Case, seeds: Sequence[int], form: Form, device: str) -> None:
        self._case, self._device = case, device
        self.form = form
        self.next = 0  # the place of the call that was last made ready
        self.ready_s = 0.0  # when it was
        self.somebody_writes = False  # an input changed between two checks
        op = ops.get(case.op)
        self.wanted = op.differentiable if case.direction.differentiates else ()
        self.results = tuple(f"d{name}" for name in self.wanted) or (OUTPUT,)
        self.ids = list(range(form.sets))
        self._seeds = list(seeds[: form.sets])
        self.sets: list[Inputs] = []
        self.grads: list[Tensor] = []
        self._checksums: list[dict[str, Tensor]] = []
        self._sums = Sums()
        self._parts: list[Part] = []  # what each set adds to the sums of all that is held
        self._right_sums: Tensor | None = None  # these sums; None until they are asked for
        for index in self.ids:
            inputs, grad_out = draw(case, self._seeds[index], device)
            self.sets.append(inputs)
            if grad_out is not None:
                self.grads.append(grad_out)
            self._checksums.append(checksum(self._held(index)))
            self._parts.append(self._part(index))

    def made_ready(self, index: int) -> None:
        """The next call is on this set."""
        self.next, self.ready_s = index, now_s()

    def touch(self) -> None:
        """Read what a model has just written or read when it calls: all inputs but the first of the
        set of the next call; with calls at once, those of all sets."""
        streams = self._case.streams > 1
        for inputs in self.sets if streams else [self.sets[self.next]]:
            for tensor in list(inputs.tensors.values())[1:]:
                if tensor.numel():
                    _amax(tensor)

    def _held(self, index: int) -> dict[str, Tensor]:
        """What of a set no call may write to, by what it is called in a reason."""
        protected = {INPUT + name: t for name, t in self.sets[index].tensors.items()}
        return protected | ({GRADIENT: self.grads[index]} if self.grads else {})

    def _part(self, index: int) -> Part:
        held, checksums = self._held(index), self._checksums[index]
        return self._sums.part([*held.values()], [*checksums.values()])

    @property
    def nbytes(self) -> int:
        """Bytes that one set and the results of a call on it take."""
        return int(sum(t.nbytes for t in self._held(0).values())) + self.form.nbytes

    def __len__(self) -> int:
        return len(self.sets)

    def swap(self, i: int, rng: Random) -> None:
        """Exchange the values at place i with those of another place."""
        j = rng.choice([other for other in range(len(self.sets)) if other != i])
        for name, tensor in self.sets[i].tensors.items():
            _exchange_values(tensor, self.sets[j].tensors[name])
        if self.grads:
            _exchange(self.grads, i, j)
        for items in (self._checksums, self._parts, self._seeds, self.ids):
            _exchange(items, i, j)
        self._right_sums = None

    def _changes(self) -> dict[int, list[str]]:
        """What does not hold the values that it should, by the set that it belongs to."""
        held = [tensor for index in range(len(self.sets)) for tensor in self._held(index).values()]
        if self._right_sums is None:
            self._right_sums = Part.joined(self._parts)
        # The host waits for the device once, and finds out of what only where something changed.
        if torch.equal(self._sums.now(held), self._right_sums):
            return {}
        now = [checksum(self._held(index)) for index in range(len(self.sets))]
        changes = {
            index: [what for what in sums if not torch.equal(sums[what], before[what])]
            for index, (sums, before) in enumerate(zip(now, self._checksums, strict=True))
            if not torch.equal(torch.cat([*sums.values()]), torch.cat([*before.values()]))
        }
        self._right_sums = None
        if not changes:  # so what changed is what was kept of them
            self._parts = [self._part(index) for index in range(len(self.sets))]
        return changes

    def any_changed(self) -> str:
        """What does not hold the values that it should ("its input q"), or ''; of the first set of
        which something does not."""
        return next((what for changes in self._changes().values() for what in changes), "")

    def repair(self) -> bool:
        """Restore all sets whose values are not what they should be; whether there was one."""
        changed = self._changes()
        for index, changes in changed.items():
            self._restore(index, changes)
        return bool(changed)

    def heal(self) -> None:
        """Repair what a call changed while nobody looked; from then on all calls are watched."""
        if self.repair():
            self.somebody_writes = True

    def _restore(self, index: int, changes: list[str]) -> None:
        """Give what changed of a set the values that it should hold, where it lies."""
        inputs, grad_out = draw(self._case, self._seeds[index], self._device)
        if any(what.startswith(INPUT) for what in changes):
            self.sets[index].fill_from(inputs)
        if grad_out is not None and GRADIENT in changes:
            self.grads[index].copy_(grad_out)


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
    """Leave NaN where the allocator will put the results of so many calls, and of one more, should
    all be kept; of large results of fewer calls."""
    dtype = getattr(torch, form.dtype)
    nbytes = sum(map(prod, form.results.values())) * dtype.itemsize
    # All at once: one after the other, each would get the memory of the one before.
    poisoned = [
        torch.full(shape, float("nan"), dtype=dtype, device=device)
        for _ in range(1 + min(calls, POISONED_BYTES // max(nbytes, 1)))
        for shape in form.results.values()
    ]
    del poisoned

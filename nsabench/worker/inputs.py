"""Keep several sets of inputs of a case; values move between sets, addresses do not."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from random import Random
from typing import Any

import torch
from torch import Tensor

from nsabench import ops
from nsabench.delivery import OUTPUT, Form, draw
from nsabench.model.case import Case
from nsabench.ops import Inputs, Probe
from nsabench.worker.checksums import BITS, Sums

CHUNK_BYTES = 256 << 20  # copied at a time
# Names in a reason.
INPUT, GRADIENT = "its input ", "the gradient of its output"
POISONED_BYTES = 32 << 20  # of results beyond the first


class InputSets:
    """The sets of inputs of a case.

    ids: the drawn set whose values each place holds now. grads: the gradient of the output for each
    place. wanted: the inputs to differentiate by.
    """

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
        for items in (self._right_sums, self._seeds, self.ids):
            _exchange(items, i, j)

    def _find_changes(self) -> dict[int, dict[str, Tensor]]:
        """Return the right values of all changed tensors, by place and name."""
        sums = self._sums.now()
        # All sets at once, so that the host waits for the device once.
        right = torch.stack(self._right_sums)
        if torch.equal(sums, right):
            return {}
        changes = {}
        for index in (sums != right).any(1).nonzero().flatten().tolist():
            changes[index] = self._find_changes_of(index)
            if not changes[index]:  # the stored sums were changed
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
                # Through `.data`, or a cache keyed on a tensor's version would notice.
                actual[name].data.copy_(right)
        return bool(changes)

    def repair_and_flag(self) -> None:
        if self.repair():
            self.is_written_to = True


def _bits(tensor: Tensor) -> Tensor:
    return tensor.view(BITS[tensor.element_size()])


def _exchange(items: list[Any], i: int, j: int) -> None:
    items[i], items[j] = items[j], items[i]


def _exchange_values(a: Tensor, b: Tensor) -> None:
    """Exchange in stream order, past the tensors' version counters."""
    most = CHUNK_BYTES // a.element_size()
    for x, y in zip(a.data.view(-1).split(most), b.data.view(-1).split(most), strict=True):
        saved = x.clone()
        x.copy_(y)
        y.copy_(saved)


def poison(form: Form, device: str, calls: int = 1) -> None:
    """Leave NaN where the allocator will put the results of so many calls, fewer if large."""
    dtype = getattr(torch, form.dtype)
    nbytes = sum(map(prod, form.results.values())) * dtype.itemsize
    # All at once: one after another, they would all get the same memory.
    poisoned = [
        torch.full(shape, float("nan"), dtype=dtype, device=device)
        for _ in range(1 + min(calls, POISONED_BYTES // max(nbytes, 1)))
        for shape in form.results.values()
    ]
    del poisoned

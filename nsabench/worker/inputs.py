"""Several sets of inputs of a case with what is right for each; data moves, addresses stay."""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from torch import Tensor

from nsabench import ops
from nsabench.case import Case
from nsabench.ops.contract import Inputs
from nsabench.words import Direction

MEMORY_SHARE = 0.25  # of the free device memory that all sets together may take
SEED_STRIDE = 7919
GRAD_SEED = 104729  # no set's inputs are drawn from the seed of another one's gradient
FOLD = 1021  # prime: no layout of heads, keys or dimensions lines up with it


class InputSets:
    """`case.timing.rotate` sets, fewer if memory is short, never fewer than two.

    Two, because only data that changes under an unchanged address tells a computed output from a
    remembered one.

    expected: of each set, the float64 results by name: `output`, or in a backward the gradients
      `dq`, `dk`, `dv`, that belong to the gradient of the output in `grads`.
    """

    def __init__(self, case: Case, device: str) -> None:
        self._case, self._device = case, device
        self.somebody_writes = False  # an input changed while nobody looked
        count = _affordable(case, device)
        self._seeds = [case.seed + i * SEED_STRIDE for i in range(count)]
        self.sets = [self._draw(seed) for seed in self._seeds]
        backward = case.direction is Direction.BACKWARD
        op = ops.get(case.op)
        self.wanted = op.differentiable if backward else ()
        self.results = tuple(f"d{name}" for name in self.wanted) or ("output",)
        self.grads = [
            op.draw_grad(inputs, seed + GRAD_SEED)
            for inputs, seed in zip(self.sets, self._seeds, strict=True)
            if backward
        ]
        self.expected = [self._expect(index) for index in range(count)]
        self._checksums = [checksum(inputs) for inputs in self.sets]

    def __len__(self) -> int:
        return len(self.sets)

    def _expect(self, index: int) -> dict[str, Tensor]:
        op, inputs = ops.get(self._case.op), self.sets[index]
        if not self.grads:
            return {"output": op.oracle(inputs)}
        found = op.gradients(inputs, self.grads[index])
        return {f"d{name}": found[name] for name in self.wanted}

    def _draw(self, seed: int) -> Inputs:
        case = self._case
        return ops.get(case.op).draw(case.sizes, case.dtype, case.distribution, seed, self._device)

    def swap(self, i: int, rng: Random) -> None:
        """Exchange the values of set i, and what is right for them, with another's in place."""
        j = rng.choice([other for other in range(len(self.sets)) if other != i])
        kept = self.sets[i].clone()
        self.sets[i].fill_from(self.sets[j])
        self.sets[j].fill_from(kept)
        _exchange(self.expected, i, j)
        if self.grads:
            _exchange(self.grads, i, j)
        _exchange(self._checksums, i, j)
        _exchange(self._seeds, i, j)

    def changed(self, index: int) -> str:
        """The name of an argument of this set whose values are not what they were, or ''."""
        now = checksum(self.sets[index])
        before = self._checksums[index]
        return next((n for n, sums in now.items() if not torch.equal(sums, before[n])), "")

    def heal(self) -> None:
        """Restore sets that a call changed while nobody looked; from then on all are watched."""
        for index in range(len(self.sets)):
            if self.changed(index):
                self.restore(index)
                self.somebody_writes = True

    def restore(self, index: int) -> None:
        """Give a mutated set back the values it held."""
        self.sets[index].fill_from(self._draw(self._seeds[index]))


def _exchange(items: list[Any], i: int, j: int) -> None:
    items[i], items[j] = items[j], items[i]


def checksum(inputs: Inputs) -> dict[str, Tensor]:
    """Sums of each tensor's bits along rows and columns of a fold, by name.

    Cheap and exact; it changes with any one element, and with elements that change places.
    """
    return {
        name: _fold(t.view(_BITS[t.element_size()]).reshape(-1))
        for name, t in inputs.tensors.items()
    }


def _fold(bits: Tensor) -> Tensor:
    folded = bits[: bits.numel() // FOLD * FOLD].view(-1, FOLD)
    rest = bits[folded.numel() :]
    sums = (folded.sum(0, dtype=torch.int64), folded.sum(1, dtype=torch.int64), rest.long())
    return torch.cat(sums)


_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def _affordable(case: Case, device: str) -> int:
    if device != "cuda":
        return max(2, case.timing.rotate)
    free, _ = torch.cuda.mem_get_info()
    each = max(case.work.bytes_min, 1)
    return max(2, min(case.timing.rotate, int(free * MEMORY_SHARE // each)))


def poison_like(expected: dict[str, Tensor], dtype: torch.dtype) -> None:
    """Leave NaN where the allocator will put the next results of these sizes."""
    for _ in range(2):
        # All at once: one after the other, each would get the memory of the one before.
        _ = [
            torch.full(t.shape, float("nan"), dtype=dtype, device=t.device)
            for t in expected.values()
        ]

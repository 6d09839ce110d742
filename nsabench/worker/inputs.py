"""Several sets of inputs of a case with their oracles, whose data moves while addresses stay."""

from __future__ import annotations

from random import Random

import torch
from torch import Tensor

from nsabench import ops
from nsabench.case import Case
from nsabench.ops.contract import Inputs

MEMORY_SHARE = 0.25  # of the free device memory that all sets together may take
SEED_STRIDE = 7919


class InputSets:
    """`case.timing.rotate` sets, fewer if memory is short, never fewer than two.

    Two, because only data that changes under an unchanged address tells a computed output from a
    remembered one.
    """

    def __init__(self, case: Case, device: str) -> None:
        op = ops.get(case.op)
        count = _affordable(case, device)
        self.sets = [
            op.draw(case.sizes, case.dtype, case.distribution, case.seed + i * SEED_STRIDE, device)
            for i in range(count)
        ]
        self.oracles = [op.oracle(inputs) for inputs in self.sets]
        self._checksums = [checksum(inputs) for inputs in self.sets]

    def __len__(self) -> int:
        return len(self.sets)

    def swap(self, rng: Random) -> None:
        """Exchange the values (and oracles) of two sets in place."""
        i, j = rng.sample(range(len(self.sets)), 2)
        kept = self.sets[i].clone()
        self.sets[i].fill_from(self.sets[j])
        self.sets[j].fill_from(kept)
        for paired in (self.oracles, self._checksums):
            paired[i], paired[j] = paired[j], paired[i]

    def changed(self, index: int) -> str:
        """The name of an argument of this set whose values are not what they were, or ''."""
        now = checksum(self.sets[index])
        return next((n for n, s in now.items() if s != self._checksums[index][n]), "")

    def restore(self, index: int, case: Case, device: str) -> None:
        """Draw a mutated set anew."""
        op = ops.get(case.op)
        seed = case.seed + index * SEED_STRIDE
        drawn = op.draw(case.sizes, case.dtype, case.distribution, seed, device)
        self.sets[index].fill_from(drawn)
        self.oracles[index] = op.oracle(drawn)
        self._checksums[index] = checksum(drawn)


def checksum(inputs: Inputs) -> dict[str, int]:
    """The sum of each tensor's bits, by name: cheap, exact, and it changes with any one element."""
    return {
        name: int(t.view(_BITS[t.element_size()]).sum(dtype=torch.int64))
        for name, t in inputs.tensors.items()
    }


_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def _affordable(case: Case, device: str) -> int:
    if device != "cuda":
        return max(2, case.timing.rotate)
    free, _ = torch.cuda.mem_get_info()
    each = max(case.work.bytes_min, 1)
    return max(2, min(case.timing.rotate, int(free * MEMORY_SHARE // each)))


def poison_like(oracle: Tensor, dtype: torch.dtype) -> None:
    """Leave NaN where the allocator will put the next output of this size."""
    for _ in range(2):
        torch.full(oracle.shape, float("nan"), dtype=dtype, device=oracle.device)

"""The oracle of a case on each of its sets of inputs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nsabench import ops
from nsabench.delivery import OUTPUT, Form, draw
from nsabench.failure import Failure
from nsabench.model.case import Case
from nsabench.model.vocabulary import Status
from nsabench.ops import Inputs, Probe

MEMORY_SHARE = 0.25  # of the free device memory that all sets together may take
MOST_OF_MEMORY = 0.6  # that the fewest possible sets may take


class Oracles:
    """The right results for sets of inputs of a case: one a seed, or two if memory is short.

    expected: the float64 results of each set by name, gradients first, then `output`.
    """

    def __init__(
        self, case: Case, seeds: Sequence[int], device: str, probe: Probe | None = None
    ) -> None:
        """Raise `Failure` (out of memory) if the sets leave no room for implementations."""
        self.case = probe.case if probe else case
        self.op = ops.get(case.op)
        self.seeds = seeds
        self._probe, self._device = probe, device
        self.expected: list[dict[str, Tensor]] = []
        free = _count_free_bytes() if device == "cuda" else None
        nbytes = self._add_set(seeds[0])
        count = len(seeds) if free is None else _count_sets(case, len(seeds), nbytes, free)
        for seed in seeds[1:count]:
            self._add_set(seed)

    def _add_set(self, seed: int) -> int:
        inputs, grad_out = self.draw(seed)
        if grad_out is None:
            expected = {OUTPUT: self.op.oracle(inputs)}
        else:
            output, gradients = self.op.results(inputs, grad_out)
            expected = {f"d{name}": gradients[name] for name in self.op.differentiable}
            # Half the memory; its error is a twentieth of what honest sums in float32 differ by.
            expected[OUTPUT] = output.float()
        self.expected.append(expected)
        tensors = [*inputs.tensors.values(), *expected.values(), grad_out]
        return sum(tensor.nbytes for tensor in tensors if tensor is not None)

    def draw(self, seed: int) -> tuple[Inputs, Tensor | None]:
        return draw(self.case, seed, self._device, self._probe)

    @property
    def form(self) -> Form:
        shapes = {name: list(tensor.shape) for name, tensor in self.expected[0].items()}
        return Form(sets=len(self.expected), dtype=self.case.dtype, results=shapes)


def _count_free_bytes() -> int:
    free, _ = torch.cuda.mem_get_info()
    return int(free + torch.cuda.memory_reserved() - torch.cuda.memory_allocated())


def _count_sets(case: Case, wanted: int, each: int, free: int) -> int:
    least = 2  # which show whether an output was computed or remembered
    if least * each > free * MOST_OF_MEMORY:
        raise Failure(
            Status.OUT_OF_MEMORY,
            f"{least} sets of inputs and their oracles take {least * each / 1e9:.1f} GB of the "
            f"{free / 1e9:.1f} GB that are free",
        )
    return max(least, min(wanted, int(free * MEMORY_SHARE // max(each, 1))))

"""What is right for a case: its oracle on each set of inputs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nsabench import ops
from nsabench.delivery import OUTPUT, Form, draw
from nsabench.failure import Failure
from nsabench.model.case import Case
from nsabench.model.vocabulary import Status
from nsabench.ops import Legal

MEMORY_SHARE = 0.25  # of the free device memory that all sets together may take
MOST_OF_MEMORY = 0.6  # that the fewest possible sets may take


class Oracles:
    """The right results for several sets of inputs of a case.

    There are as many sets as seeds, fewer if memory is short, and never fewer than two or than
    streams. Data that changes at an unchanged address shows whether an output was computed or
    remembered. Calls at once need a set each, since calls on the same data read it once.

    expected: of each set, the float64 results by name: gradients in the order of the op, then
      `output`. legal: of each set, bounds of the rows that the oracle leaves out.
    """

    def __init__(self, case: Case, seeds: Sequence[int], device: str) -> None:
        """Raises `Failure` (out of memory) when the sets leave no room for implementations."""
        self.case = case
        self.op = ops.get(case.op)
        self.seeds = seeds
        self._device = device
        self.expected: list[dict[str, Tensor]] = []
        self.legal: list[Legal | None] = []
        free = _free_bytes(device)
        nbytes = self._add(seeds[0])
        count = _affordable(case, len(seeds), nbytes, free)
        for seed in seeds[1:count]:
            self._add(seed)

    def _add(self, seed: int) -> int:
        """Compute what is right for one more set; return the bytes that it takes, with inputs."""
        inputs, grad_out = draw(self.case, seed, self._device)
        if grad_out is None:
            expected = {OUTPUT: self.op.oracle(inputs)}
        else:
            output, gradients = self.op.results(inputs, grad_out)
            expected = {f"d{name}": gradients[name] for name in self.op.differentiable}
            # In float32 it is right to 6e-8, a twentieth of what honest sums in float32 differ by,
            # and takes half the memory.
            expected[OUTPUT] = output.float()
        self.expected.append(expected)
        self.legal.append(self.op.legal(inputs, expected[OUTPUT]))
        held = [*inputs.tensors.values(), *expected.values()]
        return sum(t.nbytes for t in [*held, *([] if grad_out is None else [grad_out])])

    @property
    def form(self) -> Form:
        shapes = {name: list(tensor.shape) for name, tensor in self.expected[0].items()}
        return Form(sets=len(self.expected), dtype=self.case.dtype, results=shapes)


def _free_bytes(device: str) -> int | None:
    """Device memory that nobody uses, what torch only keeps for later included."""
    if device != "cuda":
        return None
    free, _ = torch.cuda.mem_get_info()
    return int(free + torch.cuda.memory_reserved() - torch.cuda.memory_allocated())


def _affordable(case: Case, wanted: int, each: int, free: int | None) -> int:
    """How many sets of `each` bytes to hold. Raises `Failure` when the fewest leave no room."""
    least = max(2, case.streams)
    if free is None:
        return wanted
    if least * each > free * MOST_OF_MEMORY:
        raise Failure(
            Status.OUT_OF_MEMORY,
            f"{least} sets of inputs and their oracles take {least * each / 1e9:.1f} GB of the "
            f"{free / 1e9:.1f} GB that are free",
        )
    return max(least, min(wanted, int(free * MEMORY_SHARE // max(each, 1))))

"""Several sets of inputs of a case with what is right for each; data moves, addresses stay."""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from torch import Tensor

from nsabench import ops
from nsabench.assessment.checks.parity import OUTPUT
from nsabench.execution.failure import Failure
from nsabench.execution.worker.checksums import Part, Sums, checksum
from nsabench.machine.clock import now_s
from nsabench.model.case import Case
from nsabench.model.vocabulary import Status
from nsabench.ops import Inputs, Legal

_amax = torch.amax  # bound before foreign code is imported

MEMORY_SHARE = 0.25  # of the free device memory that all sets together may take
MOST_OF_MEMORY = 0.6  # that the fewest possible sets may take
CHUNK_BYTES = 256 << 20  # of what is copied at a time
SEED_STRIDE = 7919
GRAD_SEED = 104729  # no set's inputs are drawn from the seed of another one's gradient
# What a set holds, as a reason calls it.
INPUT, ORACLE, GRADIENT = "its input ", "the oracle of its ", "the gradient of its output"
POISONED_BYTES = 32 << 20  # of results beyond the first, that a call may find unwritten


class InputSets:
    """`case.timing.rotate` sets, fewer if memory is short, never fewer than two or than streams.

    Two, because only data that changes under an unchanged address tells a computed output from a
    remembered one. As many as streams, because calls at once on the same data read it only once.
    Raises `Failure` (out of memory) when not even those leave room for the implementations.

    expected: of each set, the float64 results by name: `output`, or in a backward the gradients
      `dq`, `dk`, `dv`, that belong to the gradient of the output in `grads`.
    outputs: in a backward, the output of each set, in float32: it is right to 6e-8, a twentieth of
      what honest sums in float32 differ by, and takes half the memory.
    """

    def __init__(self, case: Case, device: str) -> None:
        self._case, self._device = case, device
        self.next = 0  # the set of the call that was last made ready
        self.ready_s = 0.0  # when it was
        self.somebody_writes = False  # an input changed while nobody looked
        self._op = ops.get(case.op)
        backward = case.direction.differentiates
        self.wanted = self._op.differentiable if backward else ()
        self.results = tuple(f"d{name}" for name in self.wanted) or (OUTPUT,)
        self._seeds: list[int] = []
        self.sets: list[Inputs] = []
        self.grads: list[Tensor] = []
        self.expected: list[dict[str, Tensor]] = []
        self.outputs: list[Tensor] = []
        self.legal: list[Legal | None] = []  # of each set, bounds of the rows that are left out
        self._checksums: list[dict[str, Tensor]] = []
        self._sums = Sums()
        self._parts: list[Part] = []  # what each set adds to the sums of all that is held
        self._right_sums: Tensor | None = None  # these sums; None until they are asked for
        free = _free_bytes(device)
        self._add(case.seed)
        count = _affordable(case, self._bytes_of_one(), free)
        for i in range(1, count):
            self._add(case.seed + i * SEED_STRIDE)

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

    def _add(self, seed: int) -> None:
        inputs = self.draw(seed)
        self._seeds.append(seed)
        self.sets.append(inputs)
        if self.wanted:
            self.grads.append(self.draw_grad(inputs, seed))
        expected = self._expect(len(self.sets) - 1)
        if self.wanted:
            self.outputs.append(expected.pop(OUTPUT))
        self.expected.append(expected)
        output = self.outputs[-1] if self.wanted else self.expected[-1][OUTPUT]
        self.legal.append(self._op.legal(inputs, output))
        self._checksums.append(checksum(self._held(len(self.sets) - 1)))
        self._parts.append(self._part(len(self.sets) - 1))

    def _held(self, index: int) -> dict[str, Tensor]:
        """What of a set no call may write to, by what it is called in a reason."""
        protected = {INPUT + name: t for name, t in self.sets[index].tensors.items()}
        protected |= {ORACLE + name: t for name, t in self.expected[index].items()}
        if self.grads:
            protected |= {GRADIENT: self.grads[index], ORACLE + OUTPUT: self.outputs[index]}
        return protected

    def _part(self, index: int) -> Part:
        held, checksums = self._held(index), self._checksums[index]
        return self._sums.part([*held.values()], [*checksums.values()])

    def results_of(self, index: int) -> dict[str, Tensor]:
        """All that a call on this set returns, by name."""
        return self.expected[index] | ({OUTPUT: self.outputs[index]} if self.outputs else {})

    def _bytes_of_one(self) -> int:
        return sum(t.nbytes for t in [*self._held(0).values(), *self._checksums[0].values()])

    def __len__(self) -> int:
        return len(self.sets)

    def _expect(self, index: int) -> dict[str, Tensor]:
        """What `results_of` returns of this set, computed anew."""
        inputs = self.sets[index]
        if not self.grads:
            return {OUTPUT: self._op.oracle(inputs)}
        output, gradients = self._op.results(inputs, self.grads[index])
        return {f"d{name}": gradients[name] for name in self.wanted} | {OUTPUT: output.float()}

    def draw(self, seed: int) -> Inputs:
        """The inputs of a seed, the same each time."""
        case = self._case
        return self._op.draw(ops.sizes(case), case.dtype, case.distribution, seed, self._device)

    def draw_grad(self, inputs: Inputs, seed: int) -> Tensor:
        """The gradient of the output that belongs to the inputs of a seed."""
        return self._op.draw_grad(inputs, seed + GRAD_SEED)

    def seed(self, index: int) -> int:
        """What the values that set `index` holds now are drawn from."""
        return self._seeds[index]

    def swap(self, i: int, rng: Random) -> None:
        """Exchange the values of set i, and what is right for them, with another's in place."""
        j = rng.choice([other for other in range(len(self.sets)) if other != i])
        for name, tensor in self.sets[i].tensors.items():
            _exchange_values(tensor, self.sets[j].tensors[name])
        _exchange(self.expected, i, j)
        if self.grads:
            _exchange(self.grads, i, j)
            _exchange(self.outputs, i, j)
        _exchange(self.legal, i, j)
        _exchange(self._checksums, i, j)
        _exchange(self._parts, i, j)
        _exchange(self._seeds, i, j)
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
        seed = self._seeds[index]
        if any(what.startswith(INPUT) for what in changes):
            self.sets[index].fill_from(self.draw(seed))
        if GRADIENT in changes:
            self.grads[index].copy_(self.draw_grad(self.sets[index], seed))
        if any(what.startswith(ORACLE) for what in changes):
            results = self.results_of(index)
            for name, tensor in self._expect(index).items():
                results[name].copy_(tensor)
            # Sums of an oracle need not come in the same order twice.
            self._checksums[index] = checksum(self._held(index))
            self._parts[index] = self._part(index)


def _exchange(items: list[Any], i: int, j: int) -> None:
    items[i], items[j] = items[j], items[i]


def _exchange_values(a: Tensor, b: Tensor) -> None:
    """In stream order, past the tensors' version counters, with little memory beside them."""
    most = CHUNK_BYTES // a.element_size()
    for x, y in zip(a.data.view(-1).split(most), b.data.view(-1).split(most), strict=True):
        saved = x.clone()
        x.copy_(y)
        y.copy_(saved)


def _free_bytes(device: str) -> int | None:
    """Device memory that nobody uses, what torch only keeps for later included."""
    if device != "cuda":
        return None
    free, _ = torch.cuda.mem_get_info()
    return int(free + torch.cuda.memory_reserved() - torch.cuda.memory_allocated())


def _affordable(case: Case, each: int, free: int | None) -> int:
    """How many sets of `each` bytes to hold. Raises `Failure` when the fewest leave no room."""
    least = max(2, case.streams)
    wanted = max(least, case.timing.rotate)
    if free is None:
        return wanted
    if least * each > free * MOST_OF_MEMORY:
        raise Failure(
            Status.OUT_OF_MEMORY,
            f"{least} sets of inputs and their oracles take {least * each / 1e9:.1f} GB of the "
            f"{free / 1e9:.1f} GB that are free",
        )
    return max(least, min(wanted, int(free * MEMORY_SHARE // max(each, 1))))


def poison_like(expected: dict[str, Tensor], dtype: torch.dtype, calls: int = 1) -> None:
    """Leave NaN where the allocator will put the results of these sizes of so many calls, and of
    one more, should all be kept; of large ones of fewer."""
    each = sum(t.numel() for t in expected.values()) * dtype.itemsize
    # All at once: one after the other, each would get the memory of the one before.
    poisoned = [
        torch.full(t.shape, float("nan"), dtype=dtype, device=t.device)
        for _ in range(1 + min(calls, POISONED_BYTES // max(each, 1)))
        for t in expected.values()
    ]
    del poisoned

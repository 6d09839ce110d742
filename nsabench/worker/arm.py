"""One implementation on one case, inside the worker: its parity checks, then its timed calls."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import torch
from torch import Tensor

from nsabench.case import Case
from nsabench.registry import Implementation
from nsabench.timing.clock import now_s
from nsabench.timing.sampling import ArmFailed
from nsabench.words import Status
from nsabench.worker import parity
from nsabench.worker.guard import Failure, guarded
from nsabench.worker.inputs import InputSets, poison_like
from nsabench.worker.parity import Errors, WrongValues

SPOT_CHECKS = 0.08  # share of timed calls whose output is compared with the oracle
ORDER_SPIN_CYCLES = 2_000_000  # about 1 ms: long enough for unordered work to show


class CaseArm:
    """An implementation bound to the input sets of a case (the `Arm` of timing.sampling)."""

    def __init__(
        self, item: Implementation, case: Case, device: str, sets: InputSets, rng: Random
    ) -> None:
        self.name = item.name
        self.item = item
        self.case = case
        self.device = device
        self.sets = sets
        self.errors: Errors | None = None
        self.wrong_output: Tensor | None = None  # kept for the diagnosis
        self.wrong_set = 0
        self.compile_s: float | None = None
        self.peak_mem_bytes: int | None = None
        self._rng = rng
        self._index = 0
        self._watched = False

    def call(self, index: int) -> Any:
        inputs = self.sets.sets[index]
        return self.item.call(*inputs.tensors.values(), **inputs.options)

    # --- parity, before anything is timed

    def check(self) -> None:
        """First call, second call on other data at the same addresses, ordered call.

        Raises `Failure` with the first thing that is wrong.
        """
        start = now_s()
        self._checked_call(0)
        self.compile_s = now_s() - start
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        # What one call must hold must not depend on what another left behind.
        self.sets.swap(self._rng)
        self.errors = self._checked_call(0)
        if self.device == "cuda":
            self.peak_mem_bytes = torch.cuda.max_memory_allocated() - before
        self._ordered_call()

    def _checked_call(self, index: int) -> Errors:
        oracle = self.sets.oracles[index]
        poison_like(oracle, getattr(torch, self.case.dtype))
        output = guarded(lambda: self.call(index), self.device)
        return self._compare(index, output, "")

    def _compare(self, index: int, output: object, when: str) -> Errors:
        changed = self.sets.changed(index)
        if changed:
            self.sets.restore(index, self.case, self.device)
            raise Failure(Status.WRONG, f"{when}it changed its input {changed}")
        oracle = self.sets.oracles[index]
        tensor = parity.check_form(output, oracle, self.sets.sets[index])
        try:
            return parity.check_values(tensor, oracle, self.case)
        except WrongValues as error:
            self.errors = error.errors
            self.wrong_output, self.wrong_set = tensor, index
            if when:
                raise WrongValues(when + error.reason, error.errors) from None
            raise

    def _ordered_call(self) -> None:
        """Is the work ordered on the caller's stream, as its next operation will assume?

        New data is written in stream order behind a spin, then the call is queued, then the output
        is copied out in stream order: work that runs elsewhere sees old data, or comes too late.
        """
        self.sets.swap(self._rng)
        fresh, other = self.sets.sets[0].clone(), self.sets.sets[1]
        self.sets.sets[0].fill_from(other)
        poison_like(self.sets.oracles[0], getattr(torch, self.case.dtype))

        def queue() -> Any:
            if self.device == "cuda":
                torch.cuda.synchronize()
                torch.cuda._sleep(ORDER_SPIN_CYCLES)
            self.sets.sets[0].fill_from(fresh)
            output = self.call(0)
            return output.clone() if type(output) is torch.Tensor else output

        output = guarded(queue, self.device)
        self._compare(0, output, "read in stream order, ")

    # --- timing (the protocol of timing.sampling.Arm)

    def prepare(self, round_: int) -> Callable[[], Any]:
        self._index = round_ % len(self.sets)
        self._watched = self._rng.random() < SPOT_CHECKS or round_ == 1
        if self._watched:
            self.sets.swap(self._rng)
            poison_like(self.sets.oracles[self._index], getattr(torch, self.case.dtype))
        index = self._index

        def call() -> Any:
            try:
                return self.call(index)
            except BaseException as error:  # noqa: BLE001 - re-raised through the guard
                raise ArmFailed from error

        return call

    def inspect(self, round_: int, result: Any) -> None:
        if self._watched:
            try:
                self._compare(self._index, result, f"in a timed call (round {round_}), ")
            except Failure as error:
                raise ArmFailed from error

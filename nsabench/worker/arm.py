"""One implementation on one case, inside the worker: its parity checks, then its timed calls."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, TypeVar

import torch
from torch import Tensor

from nsabench.case import Case
from nsabench.failure import Failure
from nsabench.ops.contract import Inputs
from nsabench.registry import Implementation
from nsabench.timing.clock import now_s
from nsabench.timing.timer import DeviceLost
from nsabench.words import Status
from nsabench.worker import parity, state
from nsabench.worker.guard import DevicePoisoned, classify, guarded
from nsabench.worker.inputs import InputSets, poison_like
from nsabench.worker.parity import Errors, WrongValues

T = TypeVar("T")

# What a call returned, each with the index of the inputs it was made from.
Outputs = list[tuple[int, Any]]

SPOT_CHECKS = 0.08  # share of timed calls whose output is compared with the oracle
ORDERED_CHECKS = 0.03  # share of timed calls before which an untimed, stream-ordered one is made
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
        # Kept for the diagnosis; the inputs too, since other arms go on exchanging the sets.
        self.wrong_output: Tensor | None = None
        self.wrong_inputs: Inputs | None = None
        self.previous: Tensor | None = None  # what the call before was expected to return
        self.compile_s: float | None = None
        self.config = ""
        self.called_s = 0.0  # spent inside checked calls, compilation included
        self.peak_mem_bytes: int | None = None
        self._rng = rng
        self._watched = False
        self._streams = (
            [torch.cuda.Stream() for _ in range(case.streams)] if case.streams > 1 else []
        )
        self._graphs: list[tuple[Any, Outputs]] = []

    def call(self, index: int) -> Outputs:
        """One call on a set of inputs; with several streams, one call a stream, at once.

        Each stream waits for the caller's and the caller's waits for each, so that the span of
        the whole is what is timed.
        """
        if self.case.streams == 1:
            return [(index, self._call_one(index))]
        current = torch.cuda.current_stream()
        outputs: Outputs = []
        for i, stream in enumerate(self._streams):
            at = (index + i) % len(self.sets)
            stream.wait_stream(current)
            with torch.cuda.stream(stream):
                outputs.append((at, self._call_one(at)))
        for stream in self._streams:
            current.wait_stream(stream)
        return outputs

    def _call_one(self, index: int) -> Any:
        inputs = self.sets.sets[index]
        return self.item.call(*inputs.tensors.values(), **inputs.options)

    def capture(self) -> None:
        """Record a CUDA graph a set of inputs; from here on timed calls are replays of them."""

        def record() -> None:
            for index in range(len(self.sets)):
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    outputs = self.call(index)
                self._graphs.append((graph, outputs))

        self._guarded(record)

    def _replay(self, index: int) -> Outputs:
        graph, outputs = self._graphs[index]
        graph.replay()
        return outputs

    # --- parity, before anything is timed

    def check(self) -> None:
        """First call, second call on other data at the same addresses, ordered call.

        Raises `Failure` with the first thing that is wrong.
        """
        start = now_s()
        self._checked_call(0)
        self.compile_s = now_s() - start
        self.previous = self.sets.oracles[0]
        self.sets.swap(0, self._rng)
        self.errors = self._checked_call(0)
        self._ordered_call()
        if self.item.config is not None:
            inputs, config = self.sets.sets[0], self.item.config
            self.config = self._guarded(
                lambda: str(config(*inputs.tensors.values(), **inputs.options))
            )

    def _poison(self, index: int) -> None:
        if self._graphs:
            for _, output in self._graphs[index][1]:
                output.fill_(float("nan"))
        for _ in range(self.case.streams):
            poison_like(self.sets.oracles[index], getattr(torch, self.case.dtype))

    def _checked_call(self, index: int) -> Errors:
        self._poison(index)
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        outputs = self._guarded(lambda: self.call(index))
        if self.device == "cuda":
            self.peak_mem_bytes = torch.cuda.max_memory_allocated() - before
        return self._compare(outputs, "")

    def _guarded(self, call: Callable[[], T]) -> T:
        """Raises `Failure`, or `DeviceLost` when the device is lost with it."""
        start, before = now_s(), state.settings()
        try:
            result = guarded(call, self.device)
        except DevicePoisoned as error:
            raise DeviceLost(self.name, str(error)) from error
        finally:
            self.called_s += now_s() - start
        changed = state.changed(before, state.settings())
        if changed:
            # Whoever comes after it in this process would be measured under other settings.
            raise Failure(Status.WRONG, f"it changed settings of the process: {changed}")
        return result

    def _compare(self, outputs: Outputs, when: str) -> Errors:
        """The largest errors of the outputs. Raises `Failure` for whichever is wrong first."""
        found = [self._compare_one(index, output, when) for index, output in outputs]
        return max(found, key=lambda errors: errors.mae)

    def _compare_one(self, index: int, output: object, when: str) -> Errors:
        changed = self.sets.changed(index)
        if changed:
            self.sets.restore(index)
            raise Failure(Status.WRONG, f"{when}it changed its input {changed}")
        oracle = self.sets.oracles[index]
        try:
            tensor = parity.check_form(output, oracle, self.sets.sets[index])
            return parity.check_values(tensor, oracle, self.case)
        except WrongValues as error:
            self.errors = error.errors
            self.wrong_output, self.wrong_inputs = tensor, self.sets.sets[index].clone()
            raise WrongValues(when + error.reason, error.errors) from None

    def _ordered_call(self) -> None:
        """Is the work ordered on the caller's stream, as its next operation will assume?

        New data is written in stream order behind a spin, then the call is queued, then the output
        is copied out in stream order: work that runs elsewhere sees old data, or comes too late.
        """
        self.sets.swap(0, self._rng)
        fresh = self.sets.sets[0].clone()
        self.sets.sets[0].fill_from(self.sets.sets[1])
        self._poison(0)
        do = self._replay if self._graphs else self.call

        def queue() -> Outputs:
            if self.device == "cuda":
                torch.cuda.synchronize()
                torch.cuda._sleep(ORDER_SPIN_CYCLES)
            self.sets.sets[0].fill_from(fresh)
            return [
                (index, output.clone() if type(output) is torch.Tensor else output)
                for index, output in do(0)
            ]

        self._compare(self._guarded(queue), "read in stream order, ")

    # --- timing (the protocol of timing.sampling.Arm)

    def prepare(self, round_: int) -> Callable[[], Outputs]:
        index = round_ % len(self.sets)
        if self._rng.random() < ORDERED_CHECKS:
            self._ordered_call()
        self._watched = self._rng.random() < SPOT_CHECKS or round_ == 1 or self.sets.somebody_writes
        if self._watched:
            self.sets.heal()
            self.sets.swap(index, self._rng)
            self._poison(index)
        do = self._replay if self._graphs else self.call

        def call() -> Outputs:
            try:
                return do(index)
            except BaseException as error:  # noqa: BLE001 - foreign code; its reason is kept
                failure = classify(error)
            # Through the guard once more: was the device lost with it?
            return self._guarded(partial(_raise, failure))

        return call

    def inspect(self, round_: int, result: Outputs) -> None:
        if self._watched:
            self._compare(result, f"in a timed call (round {round_}), ")

    def finish(self) -> None:
        self._ordered_call()


def _raise(failure: Failure) -> Outputs:
    raise failure

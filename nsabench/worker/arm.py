"""Check, then time one implementation on one case, inside the worker."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any, TypeVar

import torch
from torch import Tensor

from nsabench.checks.timing import IN_A_BURST
from nsabench.failure import Failure
from nsabench.machine.clock import now_s
from nsabench.model.case import Case
from nsabench.model.vocabulary import Role, Status
from nsabench.registry import Implementation
from nsabench.worker import calls, guard
from nsabench.worker.calls import Answer
from nsabench.worker.guard import classify, guarded, own_stream
from nsabench.worker.inputs import InputSets, poison
from nsabench.worker.outputs import Deliver, Outputs
from nsabench.worker.timing.timer import Timer

# Bound here, before foreign code is imported.
_sleep, _synchronize = torch.cuda._sleep, torch.cuda.synchronize
_current_stream, _Event = torch.cuda.current_stream, getattr(torch._C, "_CudaEventBase", None)

T = TypeVar("T")

Call = Callable[[], Answer]

SPOT_CHECKS = 0.08  # Share of timed calls whose output is compared with the oracle.
# The first bursts are always checked. After one check, a control that returns memory before it is
# written was missed in 6 of 800 cases on a CPU; after two, in none.
SURE_CHECKS = 2
BURST_CHECKS = 0.2  # Share of the later bursts that are checked.
LAST_OF_A_BURST = 0.5  # Share of the later bursts whose last call is the checked one.
ORDERED_CHECKS = 0.03  # Share of timed calls that follow an ordered call.
# A spin holds the device for about 1 ms while an ordered call is queued, and for at most 16 ms if
# the host takes longer. A call that waits for the device outlasts every spin.
ORDER_SPIN_CYCLES, MOST_ORDER_SPIN_CYCLES = 2_000_000, 32_000_000


@dataclass(eq=False)
class CaseArm:
    item: Implementation
    case: Case
    sets: InputSets
    device: str
    rng: Random
    deliver: Deliver

    def __post_init__(self) -> None:
        self.name = self.item.name
        self.outputs = Outputs(self.item, self.sets, self.deliver, self.rng)
        self.compile_s: float | None = None
        self.config = ""
        self.changed: dict[str, str] = {}  # harmless settings that were set back, in words
        self.called_s = 0.0  # in checked calls, with their compilation
        self.peak_mem_bytes: int | None = None
        self._was_right = False
        self._is_watched = False
        self._was_called = True  # the last call that was made ready
        self._sets_checked: list[int] = []  # one for each checked burst
        self._order_spin = ORDER_SPIN_CYCLES
        self.awaits_device = False  # its call ends only when the device is done
        self._settings = guard.settings()  # before any of its code runs
        self._caller = calls.Caller(self.item, self.case.direction, self.sets, self.rng)

    def capture(self) -> None:
        if self.case.direction.differentiates:
            # Each call gets another gradient of the output, but a graph keeps its tensors.
            reason = f"a {self.case.direction} is not measured in CUDA graphs"
            raise Failure(Status.UNSUPPORTED, reason)
        try:
            self._guarded(self._caller.capture)
        except Failure as failure:
            if failure.status is not Status.CRASHED:
                raise
            # It works without a graph, so it does what no graph can hold, such as to wait.
            reason = f"its call cannot be captured in a CUDA graph: {failure.reason}"
            raise Failure(Status.UNSUPPORTED, reason) from failure

    def _prepare_next(self, index: int) -> Call:
        self.outputs.expect(index)
        return self._caller.prepare(index)

    def first_call(self) -> float:
        """Return its time in ms, with its compilation."""
        start = now_s()
        self._checked_call(0)
        self.compile_s = now_s() - start
        return self.compile_s * 1e3

    def check(self) -> None:
        """Check a first call, one on other data at the same addresses, and ordered calls."""
        if self.compile_s is None:
            self.first_call()
        self.sets.swap(0, self.rng)
        self._checked_call(0)
        self._check_ordered_call()
        if self.device == "cuda":
            self._check_ordered_call(own_stream())
        if self.item.config is not None:
            inputs, config = self.sets.sets[0], self.item.config
            self.config = self._guarded(
                lambda: str(config(*inputs.tensors.values(), **inputs.options))
            )

    def _poison(self, index: int, stream: torch.cuda.Stream | None = None, calls: int = 1) -> None:
        self._caller.poison(index)
        # The allocator separates the memory of streams. A kernel that always works on the default
        # stream has its output there, and could return an earlier right one by chance.
        for where in dict.fromkeys((None, stream)):
            with _use_stream(where):
                poison(self.sets.form, self.device, calls)

    def _checked_call(self, index: int) -> None:
        self.sets.repair_and_flag()
        if self.case.direction.differentiates:
            self._poison(index)  # its forward writes as well
        call = self._guarded(partial(self._prepare_next, index))
        self._poison(index)
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        answer = self._guarded(call)
        if self.device == "cuda":
            self.peak_mem_bytes = torch.cuda.max_memory_allocated() - before
        self.outputs.check(answer, f"with {self.sets.probe}, " if self.sets.probe else "")
        self._was_right = self.item.role is not Role.CONTROL
        self._keep(answer)

    def _keep(self, answer: Answer) -> None:
        if not self._caller.graphs:  # all replays of a graph write to the same memory
            self.outputs.keep(answer)

    def _guarded(self, call: Callable[[], T]) -> T:
        """Raise `Failure`, or `DeviceLost` if the device is lost."""
        start = now_s()
        try:
            result = guarded(call, self.device, self.name)
        except Failure as failure:
            guard.restore(self._settings)
            if failure.status is Status.UNSUPPORTED and self._was_right:
                # It may decline where it would lose.
                reason = f"it declined the case after a right answer: {failure.reason}"
                raise Failure(Status.CRASHED, reason) from failure
            raise
        finally:
            self.called_s += now_s() - start
        self._refuse_settings()
        return result

    def _refuse_settings(self) -> None:
        changes = guard.restore(self._settings)
        harmful = [words for name, words in changes.items() if name not in guard.HARMLESS]
        if harmful:
            raise Failure(Status.WRONG, f"it changed settings of the process: {'; '.join(harmful)}")
        if self.item.role is Role.CANDIDATE:
            self.changed |= changes

    def _check_ordered_call(self, stream: torch.cuda.Stream | None = None) -> None:
        """Check that the work is in the order of a stream; None is the default stream.

        While a spin holds the stream, the data is exchanged with another set's, the call is queued,
        and its output is copied. Work on another stream sees the old data, or is too late.
        """
        where = "called on another stream than the default one and " if stream else ""
        while not self._queued_in_order(stream, where + "read in stream order, "):
            # The spin ended before the host had queued the call, which shows nothing.
            if self._order_spin >= MOST_ORDER_SPIN_CYCLES:
                self._order_spin, self.awaits_device = ORDER_SPIN_CYCLES, True
                return
            self._order_spin *= 4

    def _queued_in_order(self, stream: torch.cuda.Stream | None, when: str) -> bool:
        self.sets.repair_and_flag()
        self._poison(0, stream)
        was_held = True

        def queue() -> Answer:
            nonlocal was_held
            with _use_stream(stream):
                if stream:
                    # The first swap on a stream allocates, which may outlast the spin.
                    self.sets.swap(0, self.rng)
                if self.device == "cuda":
                    _synchronize()
                    _sleep(self._order_spin)
                self.sets.swap(0, self.rng)
                reached = _Event() if _Event and self.device == "cuda" else None
                if reached is not None:
                    reached.record(_current_stream())
                answer = self._prepare_next(0)()
                values = {name: _copy(value) for name, value in answer.values.items()}
                answer = replace(answer, values=values, output=_copy(answer.output))
                was_held = self.awaits_device or reached is None or not reached.query()
                return answer

        self.outputs.check(self._guarded(queue), when)
        return was_held

    def prepare(self, round_: int) -> Call:
        index = round_ % len(self.sets)
        if self.rng.random() < ORDERED_CHECKS:
            self._check_ordered_call()
        # If a watched call is repeated, the new call is watched as well.
        watched = self._is_watched and not self._was_called
        watched = watched or round_ == 1 or self.sets.is_written_to
        self._is_watched, self._was_called = watched or self.rng.random() < SPOT_CHECKS, False
        if self._is_watched:
            self.sets.repair_and_flag()
            self.sets.swap(index, self.rng)
            if self.case.direction.differentiates:
                self._poison(index)
        prepared = self._prepare_guarded(index)
        if self._is_watched:
            self._poison(index)
        return self._without_guard(prepared)

    def prepare_unchecked(self, round_: int) -> Call:
        return self._without_guard(self._prepare_guarded(round_ % len(self.sets)))

    def _without_guard(self, prepared: Call) -> Call:
        def call() -> Answer:  # the guard would wait for the device
            try:
                return prepared()
            except BaseException as error:  # noqa: BLE001 - foreign code; its reason is kept
                failure = classify(error)
            guard.restore(self._settings)
            # The guard finds out whether the device is lost.
            return self._guarded(partial(_raise, failure))

        return call

    def _prepare_guarded(self, index: int) -> Call:
        # The forward of a backward is foreign code as well.
        if self.case.direction.differentiates:
            return self._guarded(partial(self._prepare_next, index))
        return self._prepare_next(index)

    def inspect(self, round_: int, result: Answer) -> None:
        self._was_called = True
        self._refuse_settings()
        if self._is_watched:
            self.outputs.check(result, f"in a timed call (round {round_}), ")
            self._keep(result)

    def burst(self, timer: Timer, count: int) -> float:
        """Return the time in ms of one of `count` calls back to back. Raises `Failure`."""
        self.sets.repair_and_flag()
        # The sure checks use different sets: the second burst could do what the first put off.
        is_sure = len(self._sets_checked) < SURE_CHECKS
        checks = is_sure or self.rng.random() < BURST_CHECKS
        # No later call does the work that the last one puts off.
        last = is_sure or self.rng.random() < LAST_OF_A_BURST
        kept = count - 1 if last else self.rng.randrange(count)
        alone = self.rng.randrange(len(self.sets))
        if is_sure and alone in self._sets_checked:
            alone = (alone + 1) % len(self.sets)
        indices = rotate_sets(count, len(self.sets), kept, alone)
        queued = self._guarded(lambda: [self._caller.prepare(index) for index in indices])
        if checks:
            self._poison(alone, calls=count)
        keep = _copy_all if checks else lambda result: result
        time_ms, result = self._guarded(
            partial(timer.burst, [call.run for call in queued], kept, keep)
        )
        if checks:
            self._sets_checked.append(alone)
            self.outputs.expect_after(indices[kept - 1] if kept else None)
            self.outputs.check(queued[kept].answer(result), IN_A_BURST)
        return time_ms

    def one_call(self) -> Callable[[], Answer]:
        return partial(self._guarded, self._guarded(partial(self._prepare_next, 0)))

    def finish_samples(self) -> None:
        if self.item.role is Role.CANDIDATE:
            self.awaits_device = False  # it may have waited only at first
        self._check_ordered_call()


def rotate_sets(count: int, sets: int, kept: int, alone: int) -> list[int]:
    """Return the set of each of `count` calls. Only call `kept` is on the set `alone`."""
    # Else unwritten memory could hold what another call left for the same inputs.
    others = [index for index in range(sets) if index != alone]
    return [alone if i == kept else others[i % len(others)] for i in range(count)]


def _use_stream(stream: torch.cuda.Stream | None) -> AbstractContextManager[Any]:
    return torch.cuda.stream(stream) if stream else nullcontext()


def _raise(failure: Failure) -> Answer:
    raise failure


def _copy(value: Any) -> Any:
    return value.clone() if type(value) is Tensor else value


def _copy_all(result: Any) -> Any:
    return tuple(map(_copy_all, result)) if type(result) is tuple else _copy(result)

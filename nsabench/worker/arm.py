"""Check and time an arm, that is, one implementation on one case, inside the worker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any

import torch
from torch import Tensor

from nsabench.checks.timing import IN_A_BURST
from nsabench.machine.clock import now_s
from nsabench.model.case import Case
from nsabench.model.vocabulary import Role
from nsabench.registry import Implementation
from nsabench.worker.calls import Caller, CallResult, Deliver, Outputs, Ready, use_stream
from nsabench.worker.guard import own_stream
from nsabench.worker.inputs import InputSets
from nsabench.worker.timing.timer import Timer

# Bound here, before foreign code is imported.
_sleep, _synchronize = torch.cuda._sleep, torch.cuda.synchronize
_current_stream, _Event = torch.cuda.current_stream, getattr(torch._C, "_CudaEventBase", None)

Call = Callable[[], CallResult]

SPOT_CHECKS = 0.08  # share of timed calls whose output is compared with the oracle
# The first bursts (calls back to back) are always checked: a single check sometimes misses a
# control that returns memory before it is written.
SURE_CHECKS = 2
BURST_CHECKS = 0.2  # share of the later bursts that are checked
LAST_OF_A_BURST = 0.5  # share of the checked later bursts that must check their last call
ORDERED_CHECKS = 0.03  # share of timed calls before which `StreamOrder` checks a call
# A spin kernel holds the stream for about 1 ms while `StreamOrder` queues a call, and for at most
# 16 ms if the host takes longer. A call that waits for the device outlasts every spin.
ORDER_SPIN_CYCLES, MOST_ORDER_SPIN_CYCLES = 2_000_000, 32_000_000


@dataclass(eq=False)
class StreamOrder:
    """Checks that the work of a call runs in the order of its stream.

    After a spin kernel, it queues an exchange of the inputs with those of another set, the call,
    and a copy of the output. Work on another stream then reads old inputs, or writes too late.
    """

    caller: Caller
    outputs: Outputs

    def __post_init__(self) -> None:
        self.awaits_device = False  # whether a call outlasts every spin
        self._spin_cycles = ORDER_SPIN_CYCLES

    def check(self, stream: torch.cuda.Stream | None = None) -> None:
        """Check a call on a stream; None is the default stream. Raises `Failure`."""
        where = "called on a stream other than the default, " if stream else ""
        while not self._queued_in_order(stream, where + "its output read next on its stream, "):
            # The spin ended before the call was queued, so nothing is known about the order.
            if self._spin_cycles >= MOST_ORDER_SPIN_CYCLES:
                self._spin_cycles, self.awaits_device = ORDER_SPIN_CYCLES, True
                return
            self._spin_cycles *= 4

    def _queued_in_order(self, stream: torch.cuda.Stream | None, when: str) -> bool:
        caller, sets = self.caller, self.caller.sets
        sets.repair_and_flag()
        caller.poison(0, stream)
        was_held = True

        def queue() -> CallResult:
            nonlocal was_held
            with use_stream(stream):
                if stream:
                    # The first swap on a stream allocates, which may outlast the spin.
                    sets.swap(0, caller.rng)
                if caller.device == "cuda":
                    _synchronize()
                    _sleep(self._spin_cycles)
                sets.swap(0, caller.rng)
                reached = _Event() if _Event and caller.device == "cuda" else None
                if reached is not None:
                    reached.record(_current_stream())
                self.outputs.expect(0)
                result = caller.prepare(0)()
                values = {name: _copy(value) for name, value in result.values.items()}
                result = replace(result, values=values, output=_copy(result.output))
                was_held = self.awaits_device or reached is None or not reached.query()
                return result

        self.outputs.check(caller.guarded(queue), when)
        return was_held


@dataclass(eq=False)
class CaseArm:
    """Checks an implementation, and times its calls and bursts. Some of these are also checked."""

    item: Implementation
    case: Case
    sets: InputSets
    device: str
    rng: Random
    deliver: Deliver

    def __post_init__(self) -> None:
        self.name = self.item.name
        self.caller = Caller(self.item, self.case, self.sets, self.device, self.rng)
        self.outputs = Outputs(self.item, self.sets, self.deliver, self.rng)
        self.order = StreamOrder(self.caller, self.outputs)
        self.compile_s: float | None = None
        self.config = ""
        self.peak_mem_bytes: int | None = None
        self._is_watched = False
        self._was_called = True  # whether the last prepared call was inspected
        self._sets_checked: list[int] = []  # the set of each checked burst

    @property
    def called_s(self) -> float:
        return self.caller.called_s

    def first_call(self) -> float:
        """Make and check a call. Return its time in ms, with compilation."""
        start = now_s()
        self._checked_call(0)
        self.compile_s = now_s() - start
        return self.compile_s * 1e3

    def check(self) -> None:
        """Check a first call, a call on other data at the same addresses, and the stream order."""
        if self.compile_s is None:
            self.first_call()
        self.sets.swap(0, self.rng)
        self._checked_call(0)
        self.order.check()
        if self.device == "cuda":
            self.order.check(own_stream())
        if self.item.config is not None:
            inputs, config = self.sets.sets[0], self.item.config
            self.config = self.caller.guarded(
                lambda: str(config(*inputs.tensors.values(), **inputs.options))
            )

    def _checked_call(self, index: int) -> None:
        self.sets.repair_and_flag()
        if self.case.direction.differentiates:
            self.caller.poison(index)  # the untimed forward also allocates results
        call = self.caller.guarded(partial(self._prepare_next, index))
        self.caller.poison(index)
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        result = self.caller.guarded(call)
        if self.device == "cuda":
            self.peak_mem_bytes = torch.cuda.max_memory_allocated() - before
        self.outputs.check(result, f"with {self.sets.probe}, " if self.sets.probe else "")
        self.caller.was_right = self.item.role is not Role.CONTROL
        self._keep(result)

    def _keep(self, result: CallResult) -> None:
        if not self.caller.graphs:  # all replays of a graph write to the same memory
            self.outputs.keep(result)

    def _prepare_next(self, index: int) -> Ready:
        self.outputs.expect(index)
        return self.caller.prepare(index)

    def _prepare_guarded(self, index: int) -> Ready:
        # The untimed forward before a backward is foreign code.
        if self.case.direction.differentiates:
            return self.caller.guarded(partial(self._prepare_next, index))
        return self._prepare_next(index)

    def prepare(self, round_: int) -> Call:
        index = round_ % len(self.sets)
        if self.rng.random() < ORDERED_CHECKS:
            self.order.check()
        # If the timer repeats a call that was to be checked, the new call is checked.
        watched = self._is_watched and not self._was_called
        watched = watched or round_ == 1 or self.sets.is_written_to
        self._is_watched, self._was_called = watched or self.rng.random() < SPOT_CHECKS, False
        if self._is_watched:
            self.sets.repair_and_flag()
            self.sets.swap(index, self.rng)
            if self.case.direction.differentiates:
                self.caller.poison(index)
        prepared = self._prepare_guarded(index)
        if self._is_watched:
            self.caller.poison(index)
        return self.caller.without_guard(prepared)

    def prepare_unchecked(self, round_: int) -> Call:
        return self.caller.without_guard(self._prepare_guarded(round_ % len(self.sets)))

    def inspect(self, round_: int, result: CallResult) -> None:
        self._was_called = True
        self.caller.refuse_settings()
        if self._is_watched:
            self.outputs.check(result, f"in a timed call (round {round_}), ")
            self._keep(result)

    def burst(self, timer: Timer, count: int) -> float:
        """Make `count` calls back to back. Return their mean time in ms. Raises `Failure`."""
        self.sets.repair_and_flag()
        # The first `SURE_CHECKS` checks use different sets. On one set, outputs would look right if
        # each burst did the work that the burst before had put off.
        is_sure = len(self._sets_checked) < SURE_CHECKS
        checks = is_sure or self.rng.random() < BURST_CHECKS
        # Check the last call often: no later call does work that this one puts off.
        last = is_sure or self.rng.random() < LAST_OF_A_BURST
        kept = count - 1 if last else self.rng.randrange(count)
        alone = self.rng.randrange(len(self.sets))
        if is_sure and alone in self._sets_checked:
            alone = (alone + 1) % len(self.sets)
        indices = rotate_sets(count, len(self.sets), kept, alone)
        queued = self.caller.guarded(lambda: [self.caller.prepare(index) for index in indices])
        if checks:
            self.caller.poison(alone, calls=count)
        keep = _copy_all if checks else lambda result: result
        time_ms, result = self.caller.guarded(
            partial(timer.burst, [call.run for call in queued], kept, keep)
        )
        if checks:
            self._sets_checked.append(alone)
            self.outputs.expect_after(indices[kept - 1] if kept else None)
            self.outputs.check(queued[kept].answer(result), IN_A_BURST)
        return time_ms

    def one_call(self) -> Call:
        return partial(self.caller.guarded, self.caller.guarded(partial(self._prepare_next, 0)))

    def finish_samples(self) -> None:
        if self.item.role is Role.CANDIDATE:
            self.order.awaits_device = False  # perhaps only the first calls waited
        self.order.check()


def rotate_sets(count: int, sets: int, kept: int, alone: int) -> list[int]:
    """Return the set of each of `count` calls. Only call `kept` is on the set `alone`."""
    # Otherwise memory that call `kept` never writes could hold right results of another call.
    others = [index for index in range(sets) if index != alone]
    return [alone if i == kept else others[i % len(others)] for i in range(count)]


def _copy(value: Any) -> Any:
    return value.clone() if type(value) is Tensor else value


def _copy_all(result: Any) -> Any:
    return tuple(map(_copy_all, result)) if type(result) is tuple else _copy(result)

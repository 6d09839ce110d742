"""One implementation on one case, inside the worker: its parity checks, then its timed calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, TypeVar

import torch
from torch import Tensor

from nsabench.checks.burst import IN_A_BURST
from nsabench.failure import Failure
from nsabench.machine.clock import now_s
from nsabench.model.case import Case
from nsabench.model.vocabulary import Role, Status
from nsabench.registry import Implementation
from nsabench.worker import calls, cuda_graphs, state
from nsabench.worker.calls import Answer
from nsabench.worker.guard import classify, guarded
from nsabench.worker.inputs import InputSets, poison
from nsabench.worker.outputs import Answers, Deliver, Outputs
from nsabench.worker.streams import own_streams
from nsabench.worker.timing.timer import Timer

# Bound here, before foreign code is imported.
_sleep, _synchronize = torch.cuda._sleep, torch.cuda.synchronize
_current_stream, _Event = torch.cuda.current_stream, getattr(torch._C, "_CudaEventBase", None)

T = TypeVar("T")

Call = Callable[[], Answers]

SPOT_CHECKS = 0.08  # share of timed calls whose output is compared with the oracle
# The first bursts, which are looked at whatever is drawn. One is not enough: with it a control that
# returns memory which is yet to be written was missed in 6 of 800 cases on a CPU, since a right
# answer of somebody else lay there; with two, and all that memory poisoned, in none of 800.
SURE_LOOKS = 2
BURST_CHECKS = 0.2  # share of the others of which a call's output is compared with the oracle
LAST_OF_A_BURST = 0.5  # share of the others of which it would be the last call
ORDERED_CHECKS = 0.03  # share of timed calls before which an untimed, stream-ordered one is made
# How long the device is held while an ordered call is queued: about 1 ms, or longer for a call that
# takes its host longer; about 16 ms at most, since a call that waits for the device never ends.
ORDER_SPIN_CYCLES, MOST_ORDER_SPIN_CYCLES = 2_000_000, 32_000_000


class CaseArm:
    """An implementation bound to the input sets of a case (the `Arm` of timing.sampling)."""

    def __init__(
        self,
        item: Implementation,
        case: Case,
        device: str,
        sets: InputSets,
        rng: Random,
        deliver: Deliver,
    ) -> None:
        self.name = item.name
        self.item = item
        self.case = case
        self.device = device
        self.sets = sets
        # Controls are many, and their results together large; no ring is among them.
        keeps_first = item.role is not Role.CONTROL
        self.outputs = Outputs(item.name, item.computes, sets, deliver, keeps_first=keeps_first)
        self.compile_s: float | None = None
        self.config = ""
        self.called_s = 0.0  # spent inside checked calls, compilation included
        self.peak_mem_bytes: int | None = None
        self._rng = rng
        self._watched = False
        self._called = True  # the call that was last made ready
        self._sets_of_looks: list[int] = []  # at bursts, a look each
        self._order_spin = ORDER_SPIN_CYCLES
        self._awaits_device = False  # its call ends only when the device is done
        self._settings = state.settings()  # before any of its code runs
        self._streams = own_streams(case.streams) if case.streams > 1 else []
        self._graphs: list[tuple[torch.cuda.CUDAGraph, Answers]] = []

    def ready(self, index: int) -> Call:
        """Do what is not timed of one call on a set of inputs; return the call.

        With several streams it is one call a stream, at once. Each stream waits for the caller's
        and the caller's waits for each, so that the span of the whole is what is timed.
        """
        if self.case.streams == 1:
            call = self._ready_one(index)
            return lambda: [call()]
        on_each = self._on_streams(
            [
                partial(self._ready_one, (index + i) % len(self.sets))
                for i in range(self.case.streams)
            ]
        )
        return lambda: self._on_streams(on_each)

    def _ready_one(self, index: int) -> calls.Ready:
        return calls.ready(self.item, self.case.direction, self.sets, index, self._rng)

    def _on_streams(self, on_each: Sequence[Callable[[], T]]) -> list[T]:
        current = torch.cuda.current_stream()
        results = []
        for stream, call in zip(self._streams, on_each, strict=True):
            stream.wait_stream(current)
            with torch.cuda.stream(stream):
                results.append(call())
        for stream in self._streams:
            current.wait_stream(stream)
        return results

    def capture(self) -> None:
        """Record a CUDA graph a set of inputs; from here on timed calls are replays of them."""
        if self.case.direction.differentiates:
            # Its gradient of the output is another tensor each time, and a graph has one.
            raise Failure(
                Status.UNSUPPORTED, f"a {self.case.direction} is not measured in CUDA graphs"
            )

        try:
            self._graphs = self._guarded(partial(cuda_graphs.capture, self.ready, len(self.sets)))
        except Failure as failure:
            if failure.status is not Status.CRASHED:
                raise
            # Without a graph it works: what it does (wait for the device, say) no graph can hold.
            reason = f"its call cannot be captured in a CUDA graph: {failure.reason}"
            raise Failure(Status.UNSUPPORTED, reason) from failure

    def _replay(self, index: int) -> Answers:
        graph, answers = self._graphs[index]
        graph.replay()
        return answers

    def _next(self, index: int) -> Call:
        """The next call, made ready: a replay, where there are graphs."""
        self.outputs.expect(index)
        self.sets.made_ready(index)
        return partial(self._replay, index) if self._graphs else self.ready(index)

    # --- parity, before anything is timed

    def first_call(self) -> None:
        """Compiles what there is to compile, and is held to the oracle. Raises `Failure`."""
        start = now_s()
        self._checked_call(0)
        self.compile_s = now_s() - start

    def check(self) -> None:
        """First call, second call on other data at the same addresses, ordered calls.

        Raises `Failure` with the first thing that is wrong.
        """
        if self.compile_s is None:
            self.first_call()
        self.sets.swap(0, self._rng)
        self._checked_call(0)
        self._ordered_call()
        if self.device == "cuda":
            # None of the streams that calls at once are made on.
            self._ordered_call(own_streams(self.case.streams + 1)[-1])
        if self.item.config is not None:
            inputs, config = self.sets.sets[0], self.item.config
            self.config = self._guarded(
                lambda: str(config(*inputs.tensors.values(), **inputs.options))
            )

    def _poison(self, index: int, stream: torch.cuda.Stream | None = None, calls: int = 1) -> None:
        if self._graphs:
            for answer in self._graphs[index][1]:
                for value in answer.values.values():
                    value.fill_(float("nan"))
        # The allocator keeps the memory of each stream apart. What works on the default stream
        # whoever calls has its output there: an earlier one in its place could be right by chance.
        for where in self._streams or dict.fromkeys((None, stream)):
            with _on(where):
                poison(self.sets.form, self.device, calls)

    def _checked_call(self, index: int) -> None:
        self.sets.heal()
        if self.case.direction.differentiates:
            self._poison(index)  # its forward writes, too
        call = self._guarded(partial(self._next, index))
        self._poison(index)
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        answers = self._guarded(call)
        if self.device == "cuda":
            self.peak_mem_bytes = torch.cuda.max_memory_allocated() - before
        self.outputs.check(answers, "")
        self.outputs.keep(self._own(answers))

    def _own(self, answers: Answers) -> Answers:
        """Those that a caller may keep: replays of a graph write to the same memory each time, as
        everybody knows."""
        return [] if self._graphs else answers

    def _guarded(self, call: Callable[[], T]) -> T:
        """Raises `Failure`, or `DeviceLost` when the device is lost with it."""
        start = now_s()
        try:
            result = guarded(call, self.device, self.name)
        except Failure:
            state.restore(self._settings)
            raise
        finally:
            self.called_s += now_s() - start
        self._refuse_settings()
        return result

    def _refuse_settings(self) -> None:
        """Raises `Failure` when settings are not as they were before it; they are set back."""
        changed = state.restore(self._settings)
        if changed:
            raise Failure(Status.WRONG, f"it changed settings of the process: {changed}")

    def _ordered_call(self, stream: torch.cuda.Stream | None = None) -> None:
        """Is the work ordered on the caller's stream, as its next operation will assume?

        Data is exchanged for another set's in stream order behind a spin, then the call is queued,
        then the output is copied out in stream order: work that runs elsewhere sees old data, or
        comes too late.

        stream: the caller's. None is the default one, on which what is launched there whoever
        calls is in order by accident.
        """
        where = "called on another stream than the default one and " if stream else ""
        while not self._queued_in_order(stream, where + "read in stream order, "):
            # The device was there before the host had queued the call: nothing is shown by that.
            if self._order_spin >= MOST_ORDER_SPIN_CYCLES:
                self._order_spin, self._awaits_device = ORDER_SPIN_CYCLES, True
                return
            self._order_spin *= 4

    def _queued_in_order(self, stream: torch.cuda.Stream | None, when: str) -> bool:
        """Make one such call and compare what came of it; whether the device was held all the
        while, as far as this call lets it."""
        self.sets.heal()
        self._poison(0, stream)
        held = True

        def queue() -> Answers:
            nonlocal held
            with _on(stream):
                if stream:
                    # What this stream's first swap allocates may take longer than the spin.
                    self.sets.swap(0, self._rng)
                if self.device == "cuda":
                    _synchronize()
                    _sleep(self._order_spin)
                self.sets.swap(0, self._rng)
                reached = _Event() if _Event and self.device == "cuda" else None
                if reached is not None:
                    reached.record(_current_stream())
                answers = [
                    replace(
                        answer,
                        values={n: _copied(v) for n, v in answer.values.items()},
                        output=_copied(answer.output),
                    )
                    for answer in self._next(0)()
                ]
                held = self._awaits_device or reached is None or not reached.query()
                return answers

        self.outputs.check(self._guarded(queue), when)
        return held

    # --- timing (the protocol of timing.sampling.Arm)

    def prepare(self, round_: int) -> Call:
        index = round_ % len(self.sets)
        if self._rng.random() < ORDERED_CHECKS:
            self._ordered_call()
        # Whoever has a call that is watched taken anew has that watched, too.
        watched = self._watched and not self._called
        watched = watched or round_ == 1 or self.sets.somebody_writes
        self._watched, self._called = watched or self._rng.random() < SPOT_CHECKS, False
        if self._watched:
            self.sets.heal()
            self.sets.swap(index, self._rng)
            if self.case.direction.differentiates:
                self._poison(index)
        prepared = self._prepared(index)
        if self._watched:
            self._poison(index)
        return self._timed(prepared)

    def unlooked(self, round_: int) -> Call:
        """Make a call ready as `prepare` does, of which nothing is compared."""
        return self._timed(self._prepared(round_ % len(self.sets)))

    def by_the_host_s(self) -> float:
        """What a call of which nothing is compared takes by the host's clock, until the device is
        done. Raises `Failure`."""
        self.sets.heal()
        call = self._prepared(0)
        begun = now_s()
        self._guarded(call)
        return now_s() - begun

    def _timed(self, prepared: Call) -> Call:
        """The call without what the guard does around others, such as to wait for the device."""

        def call() -> Answers:
            try:
                return prepared()
            except BaseException as error:  # noqa: BLE001 - foreign code; its reason is kept
                failure = classify(error)
            state.restore(self._settings)
            # Through the guard once more: was the device lost with it?
            return self._guarded(partial(_raise, failure))

        return call

    def _prepared(self, index: int) -> Call:
        # The forward of a backward is foreign code as well.
        if self.case.direction.differentiates:
            return self._guarded(partial(self._next, index))
        return self._next(index)

    def inspect(self, round_: int, result: Answers) -> None:
        self._called = True
        self._refuse_settings()
        if self._watched:
            self.outputs.check(result, f"in a timed call (round {round_}), ")
            self.outputs.keep(self._own(result))

    def burst(self, timer: Timer, count: int) -> float:
        """Make `count` calls one behind the other (the protocol of timing.bursts.BurstArm).

        Returns the time of one (ms). What one of them returned is looked at now and then, and
        always in the first two bursts, on different sets: what is put off is done behind the first,
        and lies in memory then.
        """
        self.sets.heal()
        sure = len(self._sets_of_looks) < SURE_LOOKS
        looks = sure or self._rng.random() < BURST_CHECKS
        # Work that is put off is there latest for the last.
        last = sure or self._rng.random() < LAST_OF_A_BURST
        kept = count - 1 if last else self._rng.randrange(count)
        alone = self._rng.randrange(len(self.sets))
        if sure and alone in self._sets_of_looks:
            alone = (alone + 1) % len(self.sets)
        indices = rotated(count, len(self.sets), kept, alone)
        queued = self._guarded(partial(self._queued, indices))
        if looks:
            self._poison(alone, calls=count)
        calls_ = [one.run for one in queued]
        keep = _all_copied if looks else _as_it_is
        time_ms, result = self._guarded(partial(timer.burst, calls_, kept, keep))
        if looks:
            self._sets_of_looks.append(alone)
            self.outputs.expect_after(indices[kept - 1] if kept else None)
            self.outputs.check([queued[kept].answer(result)], IN_A_BURST)
        return time_ms

    def one_call(self) -> Callable[[], Answers]:
        """Make a call ready, as a timed one is. Raises `Failure`, and so does the call."""
        return partial(self._guarded, self._guarded(partial(self._next, 0)))

    def _queued(self, indices: list[int]) -> list[calls.Ready]:
        if not self._graphs:
            return [self._ready_one(index) for index in indices]
        graphs = [self._graphs[index] for index in indices]
        return [calls.Ready(g.replay, partial(_replayed, answers)) for g, answers in graphs]

    def finish(self) -> None:
        if self.item.role is Role.CANDIDATE:
            self._awaits_device = False  # told anew: it may have waited only at first
        self._ordered_call()
        self.outputs.finish()


def rotated(count: int, sets: int, kept: int, alone: int) -> list[int]:
    """Sets for `count` calls in turn, of two or more, of which call `kept` has `alone` to itself:
    who returns memory unwritten must not find there what another call left for the same inputs."""
    others = [index for index in range(sets) if index != alone]
    return [alone if i == kept else others[i % len(others)] for i in range(count)]


def _on(stream: torch.cuda.Stream | None) -> AbstractContextManager[Any]:
    """On this stream, or where the caller is."""
    return torch.cuda.stream(stream) if stream else nullcontext()


def _replayed(answers: Answers, _: object) -> Answer:
    """What a replay leaves where the captured call returned it."""
    return answers[0]


def _raise(failure: Failure) -> Answers:
    raise failure


def _copied(value: Any) -> Any:
    return value.clone() if type(value) is Tensor else value


def _all_copied(result: Any) -> Any:
    """Of what a backward returns, too, and of a step, which returns that beside its output."""
    return tuple(map(_all_copied, result)) if type(result) is tuple else _copied(result)


def _as_it_is(result: Any) -> Any:
    return result

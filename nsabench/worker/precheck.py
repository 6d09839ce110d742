"""Precheck baselines: one that is hopelessly behind another is called only a few times."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from nsabench.channel import Step
from nsabench.failure import Failure
from nsabench.machine.clock import now_s
from nsabench.model.job import EarlyExit
from nsabench.model.measurement import Samples
from nsabench.worker.arm import CaseArm
from nsabench.worker.timing.timer import Timer

Report = Callable[[Step], None]

ROUNDS = 2
BEHIND = 5.0  # times as long
LEFT_OUT = f"left out: {ROUNDS} calls took over {BEHIND:g} times as long as those of a faster one"


class Precheck:
    def __init__(self, early_exit: EarlyExit) -> None:
        self._early_exit = early_exit
        self._samples: dict[str, Samples] = {}
        self._failures: dict[str, Failure] = {}
        self._call_ms: dict[str, float] = {}  # of the last call, at most

    def run(self, arms: Sequence[CaseArm], timer: Timer, report: Report) -> None:
        """Call each baseline once, and a slow one in rounds by the timer. Raises `DeviceLost`."""
        left = [arm for arm in arms if arm.name in self._early_exit.baselines]
        if len(left) <= self._early_exit.stay:
            return
        calls: list[Callable[[CaseArm], float]] = [CaseArm.first_call]  # which may compile
        calls += [partial(self._sample, timer, round_) for round_ in range(ROUNDS)]
        for call in calls:
            left = [arm for arm in left if self._is_slow(call, arm, report)]

    def _is_slow(self, call: Callable[[CaseArm], float], arm: CaseArm, report: Report) -> bool:
        report(Step(phase="precheck", implementation=arm.name))
        try:
            self._call_ms[arm.name] = call(arm)
        except Failure as failure:
            self._failures[arm.name] = failure.alone()
            self._call_ms.pop(arm.name, None)
            self._samples.pop(arm.name, None)
            arm.sets.repair()
            if arm.device == "cuda":
                gc.collect()
            return False
        return self._call_ms[arm.name] >= self._early_exit.least_ms

    def _sample(self, timer: Timer, round_: int, arm: CaseArm) -> float:
        called_s, begun = arm.called_s, now_s()
        arm.sets.repair_and_flag()
        prepare = partial(arm.prepare_unchecked, round_)
        sample, result = timer.sample(arm.name, prepare(), prepare)
        arm.inspect(round_, result)
        arm.called_s = called_s + now_s() - begun
        samples = self._samples.setdefault(arm.name, Samples())
        samples.round.append(round_)
        samples.time_ms.append(sample.time_ms)
        samples.escaped_ms.append(sample.escaped_ms)
        samples.gap_hidden.append(sample.gap_hidden)
        samples.host_us.append(round(sample.host_us, 2))
        return max(sample.time_ms, sample.host_us / 1e3)  # in a queue, the slower of the two counts

    def raise_failure(self, name: str) -> None:
        if name in self._failures:
            raise self._failures[name]

    def ordered(self, arms: Sequence[CaseArm]) -> list[CaseArm]:
        # Baselines that may be left out come last, the fastest first.
        return sorted(arms, key=lambda arm: self._behind_ms(arm.name, self._call_ms))

    def _behind_ms(self, name: str, others: Iterable[str]) -> float:
        """Return the time of a call that is far behind one of the others, else 0."""
        samples = self._samples.get(name)
        if samples is None or len(samples.time_ms) < ROUNDS:
            return 0.0
        least_ms = min(samples.time_ms)
        far = any(least_ms > BEHIND * self._call_ms[other] for other in others)
        return least_ms if far and least_ms >= self._early_exit.least_ms else 0.0

    def left_out(self, name: str, right: Sequence[str]) -> Samples | None:
        """Return the samples of a baseline that is far behind one of the `right` arms, or None."""
        seen = [other for other in right if other in self._call_ms]
        if len(seen) < self._early_exit.stay or not self._behind_ms(name, seen):
            return None
        return self._samples[name]

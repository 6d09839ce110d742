"""Precheck baselines: one that is hopelessly behind another is called only a few times."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from functools import partial

from nsabench.failure import Failure
from nsabench.machine.clock import now_s
from nsabench.model.job import EarlyExit
from nsabench.model.measurement import Samples
from nsabench.worker.arm import CaseArm
from nsabench.worker.protocol import Step
from nsabench.worker.timing.timer import Timer

Report = Callable[[Step], None]

ROUNDS = 2
BEHIND = 5.0  # times as long, in each round
LEFT_OUT = f"left out: {ROUNDS} calls took over {BEHIND:g} times as long as those of a faster one"


class Precheck:
    def __init__(self, early_exit: EarlyExit) -> None:
        self._early_exit = early_exit
        self._samples: dict[str, Samples] = {}
        self._failures: dict[str, Failure] = {}
        self._took_s: dict[str, float] = {}  # by a call, at most

    def run(self, arms: Sequence[CaseArm], timer: Timer, report: Report) -> None:
        """Call each baseline once, and all in rounds if one may be behind. Raises `DeviceLost`."""
        left = [arm for arm in arms if arm.name in self._early_exit.baselines]
        if len(left) <= self._early_exit.stay:
            return
        left = self._call_each(left, self._call_first, report)
        if self._early_exit.least_ms:
            left = self._call_each(left, self._call_again, report)
        if self._one_may_be_behind():
            for round_ in range(ROUNDS):
                left = self._call_each(left, partial(self._sample, timer, round_), report)

    def _call_each(
        self, arms: Sequence[CaseArm], call: Callable[[CaseArm], None], report: Report
    ) -> list[CaseArm]:
        left = list(arms)
        for arm in arms:
            report(Step(phase="precheck", implementation=arm.name))
            try:
                call(arm)
            except Failure as failure:
                self._failures[arm.name] = failure.alone()
                left.remove(arm)
                self._took_s.pop(arm.name, None)
                self._samples.pop(arm.name, None)
                arm.sets.repair()
                if arm.device == "cuda":
                    gc.collect()
        return left

    def _call_first(self, arm: CaseArm) -> None:
        begun = now_s()
        arm.first_call()
        self._took_s[arm.name] = now_s() - begun

    def _call_again(self, arm: CaseArm) -> None:
        """Time a slow arm again, since its first call may have compiled."""
        if self._took_s[arm.name] * 1e3 >= self._early_exit.least_ms:
            self._took_s[arm.name] = arm.time_by_host_s()

    def _one_may_be_behind(self) -> bool:
        if not self._early_exit.least_ms:
            return True
        slowest = max(self._took_s.values(), default=0.0)
        behind = BEHIND * min(self._took_s.values(), default=0.0)
        return slowest * 1e3 >= self._early_exit.least_ms and slowest > behind

    def _sample(self, timer: Timer, round_: int, arm: CaseArm) -> None:
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

    def raise_failure(self, name: str) -> None:
        if name in self._failures:
            raise self._failures[name]

    def ordered(self, arms: Sequence[CaseArm]) -> list[CaseArm]:
        # Baselines that may be left out come last, the fastest first.
        return sorted(arms, key=lambda arm: self._behind_ms(arm.name))

    def _behind_ms(self, name: str) -> float:
        samples = self._samples.get(name)
        if samples is None or not self._is_behind(samples, list(self._samples)):
            return 0.0
        return min(samples.time_ms)

    def _is_behind(self, samples: Samples, others: Sequence[str]) -> bool:
        return min(samples.time_ms) >= self._early_exit.least_ms and any(
            _is_far_behind(samples, self._samples[other]) for other in others
        )

    def left_out(self, name: str, right: Sequence[str]) -> Samples | None:
        """Return the samples of a baseline that is far behind one of the `right` arms, or None."""
        samples = self._samples.get(name)
        seen = [other for other in right if other in self._samples]
        if samples is None or len(seen) < self._early_exit.stay:
            return None
        return samples if self._is_behind(samples, seen) else None


def _is_far_behind(samples: Samples, other: Samples) -> bool:
    """Compare with the device or the host of the other, whichever is slower, as in a queue."""
    rounds = zip(samples.time_ms, other.time_ms, other.host_us, strict=True)
    return all(ms > BEHIND * max(other_ms, host_us / 1e3) for ms, other_ms, host_us in rounds)

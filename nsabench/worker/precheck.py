"""A precheck of baselines: one that is hopelessly behind another is called a few times only."""

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
    """Times a few calls of each baseline that may leave early."""

    def __init__(self, early_exit: EarlyExit) -> None:
        self._early_exit = early_exit
        self._samples: dict[str, Samples] = {}
        self._failures: dict[str, Failure] = {}
        self._took_s: dict[str, float] = {}  # a call, at most

    def look(self, arms: Sequence[CaseArm], timer: Timer, report: Report) -> None:
        """Call each of those once, and if one seems to be behind, all in rounds.

        The first call is the one that compiles, and that parity checks. Raises `DeviceLost`.
        """
        left = [arm for arm in arms if arm.name in self._early_exit.baselines]
        if len(left) <= self._early_exit.stay:
            return
        left = self._each(left, self._first, report)
        if self._early_exit.least_ms:
            left = self._each(left, self._second, report)
        if self._one_may_be_behind():
            for round_ in range(ROUNDS):
                left = self._each(left, partial(self._sample, timer, round_), report)

    def _each(
        self, arms: Sequence[CaseArm], look: Callable[[CaseArm], None], report: Report
    ) -> list[CaseArm]:
        """Return those that did not fail."""
        left = list(arms)
        for arm in arms:
            report(Step(phase="precheck", implementation=arm.name))
            try:
                look(arm)
            except Failure as failure:
                self._failures[arm.name] = failure.alone()
                left.remove(arm)
                self._took_s.pop(arm.name, None)
                self._samples.pop(arm.name, None)
                arm.sets.repair()
                if arm.device == "cuda":
                    gc.collect()
        return left

    def _first(self, arm: CaseArm) -> None:
        begun = now_s()
        arm.first_call()
        self._took_s[arm.name] = now_s() - begun

    def _second(self, arm: CaseArm) -> None:
        """Time an arm again that took long: it may have compiled."""
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
        """Put those last that may be left out, the fastest of them first."""
        return sorted(arms, key=lambda arm: self._behind_ms(arm.name))

    def _behind_ms(self, name: str) -> float:
        """Return the time of a call of an arm that is behind another; 0.0 for all others."""
        samples = self._samples.get(name)
        if samples is None or not self._is_behind(samples, list(self._samples)):
            return 0.0
        return min(samples.time_ms)

    def _is_behind(self, samples: Samples, others: Sequence[str]) -> bool:
        return min(samples.time_ms) >= self._early_exit.least_ms and any(
            _is_far_behind(samples, self._samples[one]) for one in others
        )

    def left_out(self, name: str, right: Sequence[str]) -> Samples | None:
        """Return the samples of a baseline that need not be measured; None for all others.

        One of the arms that are `right` and stay is so much faster, on the device and from Python.
        """
        samples = self._samples.get(name)
        seen = [one for one in right if one in self._samples]
        if samples is None or len(seen) < self._early_exit.stay:
            return None
        return samples if self._is_behind(samples, seen) else None


def _is_far_behind(samples: Samples, other: Samples) -> bool:
    """Compare with the device or the host of the other, whichever is slower, as in a queue."""
    rounds = zip(samples.time_ms, other.time_ms, other.host_us, strict=True)
    return all(ms > BEHIND * max(other_ms, host_us / 1e3) for ms, other_ms, host_us in rounds)

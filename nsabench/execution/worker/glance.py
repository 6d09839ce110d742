"""A first look at baselines: who is hopelessly behind the best of them is called a few times.

A few calls show that a baseline is ten times slower; measuring it as the others are takes twenty,
and who takes a quarter of a second a call would take most of a run.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from nsabench.execution.failure import Failure
from nsabench.execution.protocol import Step
from nsabench.execution.timing.timer import Timer
from nsabench.execution.worker.arm import CaseArm
from nsabench.machine.clock import now_s
from nsabench.model.measurement import Samples

Report = Callable[[Step], None]

ROUNDS = 2
BEHIND = 5.0  # times as long, in each round; few calls say less than `stopping.HOPELESS` asks for
LEFT_OUT = f"left out: {ROUNDS} calls took over {BEHIND:g} times as long as the best"
WORTH_S = 0.02  # whoever takes less is measured sooner than it is known to be behind


class Glance:
    """What a few calls of each arm took.

    worth_s: whoever takes less a call is not behind, whatever the others take.
    """

    def __init__(self, worth_s: float = WORTH_S) -> None:
        self._worth_s = worth_s
        self._took_s: dict[str, float] = {}
        self._samples: dict[str, Samples] = {}

    def look(self, arms: Sequence[CaseArm], timer: Timer, report: Report) -> None:
        """Call each once, which compiles what there is to compile and is held to the oracle, and
        then, where one seems to be far behind, in rounds, since a GPU wakes up meanwhile.

        Who fails is not seen: why, parity will say. Raises `DeviceLost`.
        """
        left = self._each(arms, self._first, report)
        left = self._each(left, partial(self._second, timer), report)
        if self._one_seems_behind():
            for round_ in range(ROUNDS):
                left = self._each(left, partial(self._sample, timer, round_), report)

    def _each(
        self, arms: Sequence[CaseArm], look: Callable[[CaseArm], None], report: Report
    ) -> list[CaseArm]:
        """Those that did not fail."""
        left = list(arms)
        for arm in arms:
            report(Step(phase="glance", implementation=arm.name))
            try:
                look(arm)
            except Failure as failure:
                failure.alone()
                left.remove(arm)
                self._took_s.pop(arm.name, None)
                self._samples.pop(arm.name, None)
                arm.sets.repair()
                if arm.device == "cuda":
                    gc.collect()
        return left

    def _first(self, arm: CaseArm) -> None:
        arm.first_call()
        self._took_s[arm.name] = arm.compile_s or 0.0

    def _second(self, timer: Timer, arm: CaseArm) -> None:
        """Where the first may have compiled: a call by the clock of its host, until the device is
        done."""
        if self._took_s[arm.name] < self._worth_s:
            return
        arm.sets.heal()
        call = arm.unlooked(0)
        began = now_s()
        result = call()
        timer.synchronize()
        self._took_s[arm.name] = now_s() - began
        arm.inspect(0, result)

    def _one_seems_behind(self) -> bool:
        slowest = max(self._took_s.values(), default=0.0)
        return slowest >= self._worth_s and slowest > BEHIND * min(self._took_s.values())

    def _sample(self, timer: Timer, round_: int, arm: CaseArm) -> None:
        arm.sets.heal()
        call = arm.unlooked(round_)
        sample, result = timer.sample(arm.name, call, lambda: arm.unlooked(round_))
        arm.inspect(round_, result)
        samples = self._samples.setdefault(arm.name, Samples())
        samples.round.append(round_)
        samples.time_ms.append(sample.time_ms)
        samples.gap_hidden.append(sample.gap_hidden)
        samples.host_us.append(round(sample.host_us, 2))

    def ordered(self, arms: Sequence[CaseArm]) -> list[CaseArm]:
        """As they were, but last who seems to be far behind, so that it can be held to others."""
        return sorted(arms, key=lambda arm: self.left_out(arm.name, self._samples) is not None)

    def left_out(self, name: str, right: Iterable[str]) -> Samples | None:
        """What the calls took of who need not be measured, since one that was found right is so
        much faster, on the device and from Python: None of all others."""
        samples = self._samples.get(name)
        others = [self._samples[one] for one in right if one in self._samples]
        if samples is None or min(samples.time_ms) < self._worth_s * 1e3:
            return None
        return samples if any(_is_far_behind(samples, other) for other in others) else None


def _is_far_behind(samples: Samples, other: Samples) -> bool:
    """Its device alone takes longer than the other's device or host, whichever is longer: about
    what a call of that takes in a queue."""
    rounds = zip(samples.time_ms, other.time_ms, other.host_us, strict=True)
    return all(ms > BEHIND * max(other_ms, host_us / 1e3) for ms, other_ms, host_us in rounds)

"""A first look at who is hopelessly behind, where only the best is asked for.

Three calls show that a baseline is a hundred times slower; measuring it as the others are takes
twenty.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Sequence

from nsabench.execution.failure import Failure
from nsabench.execution.protocol import Step
from nsabench.execution.timing.timer import Timer
from nsabench.execution.worker.arm import CaseArm
from nsabench.model.measurement import Samples

ROUNDS = 2
BEHIND = 5.0  # times as long, in each round; few calls say less than `stopping.HOPELESS` asks for
LEFT_OUT = f"left out: {ROUNDS} calls took over {BEHIND:g} times as long as the best"


class Glance:
    """What a few calls of each arm took."""

    def __init__(self) -> None:
        self._samples: dict[str, Samples] = {}

    def look(self, arms: Sequence[CaseArm], timer: Timer, report: Callable[[Step], None]) -> None:
        """Call each once, which compiles what there is to compile and is held to the oracle, and
        then in rounds, since a GPU wakes up meanwhile.

        Who fails is not seen: why, parity will say. Raises `DeviceLost`.
        """
        left = list(arms)
        for round_ in range(-1, ROUNDS):
            for arm in list(left):
                report(Step(phase="glance", implementation=arm.name))
                try:
                    self._call(arm, timer, round_)
                except Failure as failure:
                    failure.alone()
                    left.remove(arm)
                    self._samples.pop(arm.name, None)
                    arm.sets.repair()
                    if arm.device == "cuda":
                        gc.collect()

    def _call(self, arm: CaseArm, timer: Timer, round_: int) -> None:
        if round_ < 0:
            arm.checked_call()
            return
        arm.sets.heal()
        call = arm.unlooked(round_)
        sample, result = timer.sample(arm.name, call, lambda: arm.unlooked(round_))
        arm.inspect(round_, result)
        samples = self._samples.setdefault(arm.name, Samples())
        samples.round.append(round_)
        samples.time_ms.append(sample.time_ms)
        samples.host_us.append(round(sample.host_us, 2))

    def ordered(self, arms: Iterable[CaseArm]) -> list[CaseArm]:
        """The fastest first, so that others can be held to it; last who was not seen."""
        return sorted(arms, key=lambda arm: self._least_ms(arm.name))

    def _least_ms(self, name: str) -> float:
        return min(self._samples[name].time_ms) if name in self._samples else float("inf")

    def left_out(self, name: str, right: Iterable[str]) -> Samples | None:
        """What the calls took of who need not be measured, since one that was found right is so
        much faster, on the device and from Python: None of all others."""
        samples = self._samples.get(name)
        others = [self._samples[one] for one in right if one in self._samples]
        if samples is None or not any(_is_far_behind(samples, other) for other in others):
            return None
        return samples


def _is_far_behind(samples: Samples, other: Samples) -> bool:
    """Its device alone takes longer than the other's device or host, whichever is longer: about
    what a call of that takes in a queue."""
    rounds = zip(samples.time_ms, other.time_ms, other.host_us, strict=True)
    return all(ms > BEHIND * max(other_ms, host_us / 1e3) for ms, other_ms, host_us in rounds)

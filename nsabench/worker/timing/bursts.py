"""Time bursts: calls back to back, as a caller in Python makes them.

The host prepares a call while the device works on the one before. A sample hides the launch gap and
has a cold L2; a burst does neither.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from nsabench.failure import Failure
from nsabench.machine.clock import now_s
from nsabench.model.measurement import Bursts
from nsabench.verdicts.statistics import MIN_ROUNDS_EVER
from nsabench.worker.timing.timer import Timer

if TYPE_CHECKING:
    from nsabench.worker.arm import CaseArm

ROUNDS = 8
BURST_S = 2e-3  # much longer than a device synchronise, about 10 µs
MOST_CALLS = 256
SLOW_MS = 20.0  # A slower call hides all host time of the next one.
ARM_BUDGET_S = 0.06  # An arm without a verdict leaves after this time in bursts.
NEEDED_MS = 1000.0  # An arm with slower calls leaves in any case.
HELD_BYTES = 2 << 30  # For all calls that are made ready before a burst.


@dataclass
class _Arm:
    calls: int
    slow: bool
    needed: bool
    spent_s: float = 0.0
    bursts: Bursts = field(default_factory=Bursts)

    def goes_on(self, round_: int) -> bool:
        if round_ < 0:  # warms up
            return not self.slow
        if round_ < 1 or self.spent_s < ARM_BUDGET_S:
            return True
        return self.needed and round_ < MIN_ROUNDS_EVER


def collect(
    arms: Sequence[CaseArm],
    timer: Timer,
    call_ms: Mapping[str, float],
    call_bytes: int,
    rng: Random,
    failed: dict[str, Failure],
    judged: Container[str] = (),
) -> dict[str, Bursts]:
    """Take bursts of every arm, in rounds of a new order; arms that fail go to `failed`.

    call_ms: the least time of a call. judged: arms that get as many bursts as an interval needs.
    """
    by_name = {arm.name: arm for arm in arms}
    going = {
        name: _Arm(
            _count_calls(call_ms[name], call_bytes),
            slow=call_ms[name] >= SLOW_MS,
            needed=name in judged and call_ms[name] <= NEEDED_MS,
        )
        for name in by_name
    }
    for round_ in range(-1, ROUNDS):
        order = [name for name, arm in going.items() if arm.goes_on(round_)]
        rng.shuffle(order)
        for name in order:
            begun, count = now_s(), going[name].calls
            try:
                time_ms = by_name[name].burst(timer, count)
            except Failure as failure:
                failed[name] = failure.alone()
                del going[name]
                continue
            going[name].spent_s += now_s() - begun
            if round_ >= 0:
                going[name].bursts.calls.append(count)
                going[name].bursts.time_ms.append(time_ms)
    return {name: arm.bursts for name, arm in going.items()}


def _count_calls(call_ms: float, call_bytes: int) -> int:
    fewest = 2 if call_ms < SLOW_MS else 1  # a single call follows no other
    enough = max(fewest, math.ceil(BURST_S * 1e3 / max(call_ms, 1e-6)))
    affordable = HELD_BYTES // max(call_bytes, 1)
    return max(1, min(MOST_CALLS, enough, affordable))

"""Bursts: calls one behind the other, nothing awaited between them, arm after arm.

A sample has its launch gap hidden and a cold L2. A burst has neither: it is what a caller in Python
pays, who prepares the next call while the device works on the one before.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from nsabench.failure import Failure
from nsabench.machine.clock import now_s
from nsabench.model.measurement import Bursts
from nsabench.verdicts.statistics import MIN_ROUNDS_EVER
from nsabench.worker.timing.timer import Timer

ROUNDS = 8
BURST_S = 2e-3  # a device synchronise, of some 10 µs, is nothing beside it
MOST_CALLS = 256
SLOW_MS = 20.0  # of a call that hides whatever its host does for the next
ARM_BUDGET_S = 0.06  # in all bursts of an arm, but for those that a verdict needs
# Of a call whose bursts a verdict needs: it has as many as an interval is made of, whatever is done
# around them, or one; with one fewer than that nothing could be said.
NEEDED_MS = 1000.0
HELD_BYTES = 2 << 30  # what is made ready before a burst may take in all


class BurstArm(Protocol):
    """One implementation, whose calls can be made one behind the other."""

    name: str

    def burst(self, timer: Timer, count: int) -> float:
        """The time a call (ms) of so many in a row, the input sets in turn.

        Raises `Failure` when the implementation does, or returns what is wrong.
        """
        ...


@dataclass
class _Arm:
    calls: int
    slow: bool
    needed: bool
    spent_s: float = 0.0
    bursts: Bursts = field(default_factory=Bursts)

    def goes_on(self, round_: int) -> bool:
        """Whether it has a burst in this round. The first that counts is for all, and the one
        before, which warms up, for all but those whose calls are so slow that it tells nothing."""
        if round_ < 0:
            return not self.slow
        if round_ < 1 or self.spent_s < ARM_BUDGET_S:
            return True
        return self.needed and round_ < MIN_ROUNDS_EVER


def collect(
    arms: Sequence[BurstArm],
    timer: Timer,
    call_ms: Mapping[str, float],
    call_bytes: int,
    rng: Random,
    failed: dict[str, Failure],
    judged: Container[str] = (),
) -> dict[str, Bursts]:
    """Bursts of every arm, in rounds, in a new order each time; those that fail go to `failed`.

    call_ms: how long a call takes at least. call_bytes: what one that is made ready holds on to.
    judged: whose bursts a verdict is of; they go on to as many as an interval needs.
    """
    by_name = {arm.name: arm for arm in arms}
    going = {
        name: _Arm(
            _count(call_ms[name], call_bytes),
            slow=call_ms[name] >= SLOW_MS,
            needed=name in judged and call_ms[name] <= NEEDED_MS,
        )
        for name in by_name
    }
    for round_ in range(-1, ROUNDS):  # the first one warms up
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


def _count(call_ms: float, call_bytes: int) -> int:
    fewest = 2 if call_ms < SLOW_MS else 1  # one call is behind no other
    enough = max(fewest, math.ceil(BURST_S * 1e3 / max(call_ms, 1e-6)))
    affordable = HELD_BYTES // max(call_bytes, 1)
    return max(1, min(MOST_CALLS, enough, affordable))

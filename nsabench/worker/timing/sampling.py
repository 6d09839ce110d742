"""Take samples and bursts in rounds. Each round times every arm that is left, in a new order.

An arm is one implementation on the case. A sample is one call, with a cold L2 and its launch gap
hidden. A burst is many calls back to back, as a caller in Python makes them: the host prepares a
call while the device works on the one before. After each round the stopping rule of the matrix
decides whether the samples are enough.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from nsabench.failure import Failure
from nsabench.machine.clock import now_s
from nsabench.model.case import FixedCount, RatioCI, Stopping
from nsabench.model.measurement import Bursts, Samples
from nsabench.verdicts.statistics import MIN_ROUNDS_EVER, quantile, ratio_of_medians
from nsabench.worker.timing.timer import Timer

if TYPE_CHECKING:
    from nsabench.worker.arm import CaseArm

STOP_RESAMPLES = 200  # a verdict uses more
CONTENDER_MARGIN = 1.1  # a baseline beyond this multiple of the best time will not become the best
HOPELESS = 3.0  # an arm beyond this multiple of the best baseline's time leaves, except candidates

MIN_WARMUP_CALLS = 3
SETTLED = 0.03  # an arm is warm if the medians of its last calls and those before agree this well
MAX_WARMUP = 4  # warm-up ends after this multiple of the requested time
BURST_ROUNDS = 8
BURST_S = 2e-3  # much longer than a device synchronise, about 10 µs
MOST_CALLS = 256
SLOW_MS = 20.0  # a slower call hides all host time of the next one
ARM_BUDGET_S = 0.06  # an arm whose bursts decide no verdict leaves after this time in bursts
NEEDED_MS = 1000.0  # an arm with longer calls leaves as early, even if its bursts decide a verdict
HELD_BYTES = 2 << 30  # limit on the total memory of the calls prepared before a burst


@dataclass
class StopAtRatioCI:
    """Stops when all candidates' ratios to the best baseline are precise, or the budget is spent.

    After `MIN_ROUNDS_EVER` rounds the arms beyond `HOPELESS` leave, except candidates. Then the
    budget begins. After `min_rounds` only candidates and the baselines near the best one stay. The
    second best one also stays unless it takes half of the budget, since a check may yet reject the
    best one. Alternatives to the op stay or leave by the same rules, measured against the best
    alternative. Each candidate's ratio to the best alternative must also be precise.
    """

    model: RatioCI
    candidates: set[str]
    baselines: set[str]
    alternatives: set[str]

    def __post_init__(self) -> None:
        self._rivals = [kind for kind in (self.baselines, self.alternatives) if kind]
        self._next_look = self.model.min_rounds
        self._began_s = 0.0

    def enough(self, rounds: int, elapsed_s: float, times: Mapping[str, Sequence[float]]) -> bool:
        if rounds == MIN_ROUNDS_EVER:
            self._began_s = elapsed_s
        spent_s = elapsed_s - self._began_s
        if rounds < self.model.min_rounds:
            # A slow candidate must not use up the time of later cases.
            return rounds > MIN_ROUNDS_EVER and spent_s >= 2 * self.model.budget_s
        if rounds >= self.model.max_rounds or spent_s >= self.model.budget_s:
            return True
        if rounds < self._next_look:
            return False
        self._next_look = rounds + max(10, rounds // 4)
        best = [ranked[0] for kind in self._rivals if (ranked := self._rank(kind, rounds, times))]
        return all(
            ratio_of_medians(times[b], times[c], resamples=STOP_RESAMPLES).width < self.model.width
            for b in best
            for c in self.candidates & set(times)
        )

    def active(self, rounds: int, times: Mapping[str, Sequence[float]]) -> set[str]:
        ranked = [r for kind in self._rivals if (r := self._rank(kind, rounds, times))]
        if rounds < MIN_ROUNDS_EVER or not ranked:
            return set(times)
        kinds = set().union(*self._rivals)
        needed = {arm for arms in ranked for arm in self._find_needed(arms, rounds, times, kinds)}
        return self.candidates & set(times) | needed

    def _find_needed(
        self, ranked: list[str], rounds: int, times: Mapping[str, Sequence[float]], kinds: set[str]
    ) -> set[str]:
        early = rounds < self.model.min_rounds
        limit = (HOPELESS if early else CONTENDER_MARGIN) * quantile(times[ranked[0]], 0.5)
        spare = {arm for arm in ranked[1:2] if sum(times[arm]) / 1e3 < self.model.budget_s / 2}
        own = set(ranked) | (set(times) - kinds if early else set())
        return spare | {
            arm
            for arm, samples in times.items()
            if arm in own
            and len(samples) == rounds
            # A few samples may all be disturbed, but a slow arm is slow in each of them.
            and (min(samples) if early else quantile(samples, 0.5)) <= limit
        }

    @staticmethod
    def _rank(kind: set[str], rounds: int, times: Mapping[str, Sequence[float]]) -> list[str]:
        medians = {
            arm: quantile(times[arm], 0.5)
            for arm in kind & set(times)
            if len(times[arm]) == rounds > 0
        }
        return sorted(medians, key=lambda arm: (medians[arm], arm))


@dataclass
class StopAtCount:
    model: FixedCount

    def enough(self, rounds: int, elapsed_s: float, times: Mapping[str, Sequence[float]]) -> bool:
        return rounds >= self.model.rounds

    def active(self, rounds: int, times: Mapping[str, Sequence[float]]) -> set[str]:
        return set(times)


StoppingRule = StopAtRatioCI | StopAtCount


def make_rule(
    model: Stopping, candidates: set[str], baselines: set[str], alternatives: set[str]
) -> StoppingRule:
    if isinstance(model, FixedCount):
        return StopAtCount(model)
    return StopAtRatioCI(model, candidates, baselines, alternatives)


@dataclass
class Collected:
    samples: dict[str, Samples] = field(default_factory=dict)
    failed: dict[str, Failure] = field(default_factory=dict)
    busy_s: float = 0.0  # in warm-up and timed calls, without the calls that are checked

    def finish(self, arm: CaseArm, last: Callable[[], None]) -> None:
        """Make the last check of an arm that has samples. If the check fails, drop the samples."""
        if arm.name not in self.samples:
            return
        try:
            last()
        except Failure as failure:
            self.failed[arm.name] = failure.alone()
            del self.samples[arm.name]

    @contextmanager
    def busy(self, *arms: CaseArm) -> Iterator[None]:
        begun, called_s = now_s(), sum(arm.called_s for arm in arms)
        try:
            yield
        finally:
            counted_s = sum(arm.called_s for arm in arms) - called_s
            self.busy_s += now_s() - begun - counted_s


def warm_up(arm: CaseArm, timer: Timer, seconds: float, out: Collected) -> None:
    """Call an arm for `seconds`, and until its times settle, for at most `MAX_WARMUP * seconds`."""
    times: list[float] = []
    start = now_s()
    try:
        with out.busy(arm):
            while not _is_warm(times, now_s() - start, seconds):
                prepare = partial(arm.prepare, 0)
                sample, result = timer.sample(arm.name, prepare(), prepare)
                arm.inspect(0, result)
                times.append(sample.time_ms)
    except Failure as failure:
        out.failed[arm.name] = failure.alone()


def _is_warm(times: list[float], elapsed: float, seconds: float) -> bool:
    if len(times) < MIN_WARMUP_CALLS or elapsed < seconds:
        return elapsed > MAX_WARMUP * seconds and len(times) >= 1
    third = max(1, len(times) // 3)
    last, before = sorted(times[-third:])[third // 2], sorted(times[-2 * third : -third] or times)
    return abs(last / before[len(before) // 2] - 1) < SETTLED or elapsed > MAX_WARMUP * seconds


def take_samples(
    arms: Sequence[CaseArm], timer: Timer, rule: StoppingRule, rng: Random, out: Collected
) -> None:
    by_name = {arm.name: arm for arm in arms if arm.name not in out.failed}
    out.samples = {name: Samples() for name in by_name}
    times = {name: s.time_ms for name, s in out.samples.items()}
    start, round_ = now_s(), 0
    while times and not rule.enough(round_, now_s() - start, times):
        order = sorted(rule.active(round_, times))
        rng.shuffle(order)
        for position, name in enumerate(order):
            try:
                prepare = partial(by_name[name].prepare, round_)
                call = prepare()  # makes checked calls, so it may fail
                with out.busy(by_name[name]):
                    sample, result = timer.sample(name, call, prepare)
                by_name[name].inspect(round_, result)
            except Failure as failure:
                out.failed[name] = failure.alone()
                del out.samples[name], times[name]
                continue
            samples = out.samples[name]
            samples.round.append(round_)
            samples.order.append(position)
            samples.at_s.append(round(now_s() - start, 6))
            samples.time_ms.append(sample.time_ms)
            samples.escaped_ms.append(sample.escaped_ms)
            samples.gap_hidden.append(sample.gap_hidden)
            samples.host_us.append(round(sample.host_us, 2))
        round_ += 1
    for arm in arms:
        out.finish(arm, arm.finish_samples)


@dataclass
class _Bursting:
    calls: int
    slow: bool
    needed: bool
    spent_s: float = 0.0
    bursts: Bursts = field(default_factory=Bursts)

    def goes_on(self, round_: int) -> bool:
        if round_ < 0:  # round -1 warms up
            return not self.slow
        if round_ < 1 or self.spent_s < ARM_BUDGET_S:
            return True
        return self.needed and round_ < MIN_ROUNDS_EVER


def take_bursts(
    arms: Sequence[CaseArm],
    timer: Timer,
    call_ms: Mapping[str, float],
    call_bytes: int,
    rng: Random,
    failed: dict[str, Failure],
    judged: Container[str] = (),
) -> dict[str, Bursts]:
    """Take bursts in rounds. A call takes about `call_ms`. Arms in `judged` need an interval."""
    by_name = {arm.name: arm for arm in arms}
    going = {
        name: _Bursting(
            _count_calls(call_ms[name], call_bytes),
            slow=call_ms[name] >= SLOW_MS,
            needed=name in judged and call_ms[name] <= NEEDED_MS,
        )
        for name in by_name
    }
    for round_ in range(-1, BURST_ROUNDS):
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
    fewest = 2 if call_ms < SLOW_MS else 1  # a single call is not back to back with another
    enough = max(fewest, math.ceil(BURST_S * 1e3 / max(call_ms, 1e-6)))
    affordable = HELD_BYTES // max(call_bytes, 1)
    return max(1, min(MOST_CALLS, enough, affordable))

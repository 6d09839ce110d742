"""Take interleaved samples in rounds: every arm once a round, in a new order each time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from nsabench.failure import Failure
from nsabench.machine.clock import now_s
from nsabench.model.measurement import Samples
from nsabench.worker.timing.stopping import Rule
from nsabench.worker.timing.timer import Timer

if TYPE_CHECKING:
    from nsabench.worker.arm import CaseArm

MIN_WARMUP_CALLS = 3
SETTLED = 0.03  # medians of two successive warm-up thirds agree this well
MAX_WARMUP = 4  # multiple of the requested time


@dataclass
class Collected:
    samples: dict[str, Samples] = field(default_factory=dict)
    failed: dict[str, Failure] = field(default_factory=dict)
    busy_s: float = 0.0  # in warm-up and timed calls, without what arms count themselves

    def finish(self, arm: CaseArm, last: Callable[[], None]) -> None:
        """Make the last check of an arm that has samples; drop them if it fails."""
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
    """Call an arm for `seconds`, and then until its times settle, at most four times as long."""
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


def collect(arms: Sequence[CaseArm], timer: Timer, rule: Rule, rng: Random, out: Collected) -> None:
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

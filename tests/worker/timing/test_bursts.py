"""Bursts: how many calls, in which rounds, and what becomes of an arm that fails."""

from random import Random

import pytest

from nsabench.failure import Failure
from nsabench.model.vocabulary import Status
from nsabench.worker.timing import sampling
from nsabench.worker.timing.timer import CpuTimer, call_back_to_back


class CountedArm:
    """An arm whose calls take `call_ms` on a made-up clock."""

    def __init__(self, name, call_ms, log, fails_at=-1, around_ms=0.0):
        self.name = name
        self.call_ms = call_ms
        self.log = log
        self.counts: list[int] = []
        self.fails_at = fails_at
        self.around_ms = around_ms  # the time of checks before and after a burst

    def burst(self, timer, count):
        self.log.append(self.name)
        self.counts.append(count)
        if len(self.counts) == self.fails_at:
            raise Failure(Status.CRASHED, "it broke")
        now[0] += (count * self.call_ms + self.around_ms) / 1e3
        return self.call_ms


now = [0.0]


@pytest.fixture(autouse=True)
def _clock(monkeypatch):
    monkeypatch.setattr(sampling, "now_s", lambda: now[0])


def collect(*arms, call_bytes=0, judged=""):
    failed = {}
    call_ms = {arm.name: arm.call_ms for arm in arms}
    found = sampling.take_bursts(arms, CpuTimer(), call_ms, call_bytes, Random(0), failed, judged)
    return found, failed


def test_every_arm_has_its_rounds_in_new_orders_after_one_that_warms_up():
    log = []
    found, failed = collect(*(CountedArm(name, 0.1, log) for name in "abcd"))
    assert not failed
    assert {name: len(b.time_ms) for name, b in found.items()} == dict.fromkeys("abcd", 8)
    rounds = [tuple(log[i : i + 4]) for i in range(0, len(log), 4)]
    assert len(rounds) == 9 and all(sorted(r) == list("abcd") for r in rounds)
    assert len(set(rounds)) > 1
    assert found["a"].calls == [20] * 8 and found["a"].time_ms == [0.1] * 8


@pytest.mark.parametrize(
    ("call_ms", "call_bytes", "count"),
    [
        (0.001, 0, 256),
        (0.02, 0, 100),
        (5.0, 0, 2),
        (25.0, 0, 1),
        (0.02, 1 << 28, 8),
        (0.02, 1 << 40, 1),
    ],
)
def test_a_burst_takes_two_milliseconds_within_its_bounds(call_ms, call_bytes, count):
    arm = CountedArm("a", call_ms, [])
    collect(arm, call_bytes=call_bytes)
    assert set(arm.counts) == {count}


def test_a_slow_arm_gets_one_burst_that_counts():
    slow, fast = CountedArm("slow", 500.0, []), CountedArm("fast", 0.01, [])
    found, _ = collect(slow, fast)
    assert (len(slow.counts), len(fast.counts)) == (1, 9)
    assert len(found["slow"].time_ms) == 1


@pytest.mark.parametrize(
    ("call_ms", "bursts_made"), [(19.0, 6), (20.0, 5), (100.0, 5), (400.0, 5), (2000.0, 1)]
)
def test_whose_verdict_is_asked_has_as_many_as_an_interval_needs(call_ms, bursts_made):
    mine, other = CountedArm("m", call_ms, []), CountedArm("o", call_ms, [])
    collect(mine, other, judged="m")
    assert len(mine.counts) == bursts_made
    assert len(other.counts) <= max(2, 60 / call_ms + 1)


def test_what_is_done_around_a_burst_takes_none_of_those_that_are_needed():
    """An interval needs five bursts. Checks around a burst do not count, even with calls of 420
    ms."""
    mine, dense = (CountedArm(name, 420.0, [], around_ms=100.0) for name in "md")
    collect(mine, dense, judged="md")
    assert (len(mine.counts), len(dense.counts)) == (5, 5)


def test_who_fails_leaves_and_the_others_stay():
    found, failed = collect(CountedArm("a", 0.1, [], fails_at=3), CountedArm("b", 0.1, []))
    assert set(found) == {"b"} and set(failed) == {"a"}
    assert failed["a"].reason == "it broke"


@pytest.mark.parametrize("kept", range(4))
def test_one_result_is_kept_of_calls_made_in_order(kept):
    made = []

    def call(i):
        made.append(i)
        return 10 * i

    assert call_back_to_back([lambda i=i: call(i) for i in range(4)], kept) == 10 * kept
    assert made == [0, 1, 2, 3]


def test_the_time_is_that_of_one_call():
    time_ms, result = CpuTimer().burst([lambda: "out"] * 5, 2)
    assert time_ms > 0 and result == "out"

"""Warm-up, rounds and stopping rules, with a timer whose readings are known."""

from random import Random

import numpy as np
import pytest

from nsabench.failure import Failure
from nsabench.model.case import FixedCount, RatioCI
from nsabench.model.vocabulary import Status
from nsabench.worker.timing import sampling
from nsabench.worker.timing.sampling import (
    MIN_ROUNDS_EVER,
    Collected,
    StopAtRatioCI,
    take_samples,
    warm_up,
)
from nsabench.worker.timing.timer import CallTime


class Clock:
    """Host time that advances only with calls."""

    def __init__(self):
        self.now_s = 0.0


class KnownTimer:
    """Reads the time that a call returns, in ms, and advances the clock by it."""

    def __init__(self, clock):
        self.clock = clock
        self.order: list[str] = []

    def sample(self, arm, call, again=None):
        self.order.append(arm)
        taken = call()
        self.clock.now_s += taken / 1e3
        return CallTime(taken, escaped_ms=0.25, gap_hidden=arm != "waits"), taken

    def burst(self, calls, kept, keep):
        taken = [call() for call in calls]
        self.clock.now_s += sum(taken) / 1e3
        return sum(taken) / len(taken), taken[kept]

    def forget(self): ...


class KnownArm:
    def __init__(self, name, *times, fails_at=-1, where="call"):
        self.name = name
        self.times = list(times)
        self.calls = 0
        self.called_s = 0.0
        self.fails_at, self.where = fails_at, where
        self.finished = False

    def _fail(self, where):
        if self.where == where and self.calls == self.fails_at:
            raise Failure(Status.WRONG, f"in {where}")

    def prepare(self, round_):
        self._fail("prepare")

        def call():
            self._fail("call")
            self.calls += 1
            return self.times[min(self.calls, len(self.times)) - 1]

        return call

    def inspect(self, round_, result):
        self._fail("inspect")

    def finish_samples(self):
        self.finished = True
        self._fail("finish")


class CountingArm(KnownArm):
    """Counts half of each call's time itself, as an arm that checks its calls does."""

    def prepare(self, round_):
        call = super().prepare(round_)

        def counted():
            taken = call()
            self.called_s += taken / 2e3
            return taken

        return counted


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(sampling, "now_s", lambda: made.now_s)
    return made


def rounds(clock, count, *arms, seed=0):
    rule = sampling.make_rule(FixedCount(kind="fixed_count", rounds=count), set(), set(), set())
    out, timer = Collected(), KnownTimer(clock)
    take_samples(arms, timer, rule, Random(seed), out)
    return out, timer


def test_what_an_arm_has_counted_itself_is_not_counted_twice(clock):
    """Otherwise the measuring could take more time than the run."""
    arms = CountingArm("a", 10.0), CountingArm("b", 20.0)
    out, _ = rounds(clock, 6, *arms)
    assert out.busy_s + sum(arm.called_s for arm in arms) == pytest.approx(0.18)
    warm = CountingArm("c", 10.0)
    warm_up(warm, KnownTimer(clock), 0.025, out)
    assert out.busy_s == pytest.approx(0.09 + 0.015)


@pytest.mark.parametrize(
    ("times", "calls"),
    [
        ([10.0], 3),  # 25 ms have passed, and the last third agrees with the one before
        ([1.0], 25),
        ([60.0], 2),  # fewer than three calls, but four times the asked time has passed
        ([200.0], 1),
        ([30.0, 20.0, 10.0, 5.0], 5),  # settles at the second 5
        ([30.0, 60.0, 20.0], 3),  # does not settle before four times the asked time has passed
    ],
)
def test_warm_up_ends_when_times_settle(clock, times, calls):
    arm, out = KnownArm("a", *times), Collected()
    warm_up(arm, KnownTimer(clock), 0.025, out)
    assert out.failed == {}
    assert out.busy_s == pytest.approx(clock.now_s)
    assert arm.calls == calls


def test_a_failure_in_warm_up_leaves_no_samples(clock):
    good, bad, out = KnownArm("good", 1.0), KnownArm("bad", 1.0, fails_at=2), Collected()
    for arm in (good, bad):
        warm_up(arm, KnownTimer(clock), 0.025, out)
    rule = sampling.make_rule(FixedCount(kind="fixed_count", rounds=4), set(), set(), set())
    take_samples([good, bad], KnownTimer(clock), rule, Random(0), out)
    assert set(out.samples) == {"good"}
    assert out.failed["bad"].reason == "in call"


def test_every_arm_is_called_once_a_round_and_nobody_always_leads(clock):
    out, timer = rounds(clock, 40, *(KnownArm(name, 1.0) for name in "abc"))
    by_round = [timer.order[i : i + 3] for i in range(0, 120, 3)]
    assert all(sorted(one) == ["a", "b", "c"] for one in by_round)
    leads = [sum(one[0] == name for one in by_round) for name in "abc"]
    assert min(leads) >= 5
    for name in "abc":
        taken = out.samples[name]
        assert taken.round == list(range(40))
        assert taken.order == [one.index(name) for one in by_round]
        assert taken.at_s == sorted(taken.at_s)


def test_a_sample_is_what_the_timer_read(clock):
    out, _ = rounds(clock, 3, KnownArm("a", 1.5, 2.5, 3.5), KnownArm("waits", 4.0))
    assert out.samples["a"].time_ms == [1.5, 2.5, 3.5]
    assert out.samples["a"].escaped_ms == [0.25] * 3
    assert out.samples["a"].gap_hidden == [True] * 3
    assert out.samples["waits"].gap_hidden == [False] * 3
    assert out.busy_s == pytest.approx(0.0195)


@pytest.mark.parametrize("where", ["prepare", "call", "inspect", "finish"])
def test_an_arm_that_fails_leaves_with_its_samples_and_the_others_go_on(clock, where):
    at = 6 if where == "finish" else 3
    bad, good = KnownArm("bad", 1.0, fails_at=at, where=where), KnownArm("good", 1.0)
    out, _ = rounds(clock, 6, bad, good)
    assert set(out.samples) == {"good"}
    assert len(out.samples["good"].time_ms) == 6
    assert out.failed["bad"].reason == f"in {where}"
    assert good.finished


def test_when_all_arms_have_left_it_ends(clock):
    out, timer = rounds(
        clock, 10**9, KnownArm("a", 1.0, fails_at=2), KnownArm("b", 1.0, fails_at=1)
    )
    assert out.samples == {}
    assert set(out.failed) == {"a", "b"}
    assert len(timer.order) == 5


MODEL = RatioCI(width=0.01, min_rounds=20, max_rounds=200, budget_s=2.0)


def rule(model=MODEL):
    return StopAtRatioCI(model, {"mine"}, {"best", "near", "far"}, set())


def times(rounds, noise=1e-4, **medians):
    rng = np.random.default_rng(rounds)
    return {n: list(m * (1 + noise * rng.standard_normal(rounds))) for n, m in medians.items()}


def test_nothing_is_enough_before_the_least_rounds():
    assert not rule().enough(19, 0.1, times(19, mine=1.0, best=1.0))
    assert rule().enough(20, 0.1, times(20, mine=1.0, best=1.0))


def test_a_wide_interval_goes_on_to_the_most_rounds():
    noisy = rule()
    for rounds in range(20, 200):
        assert not noisy.enough(rounds, 0.1, times(rounds, noise=0.3, mine=1.0, best=1.0))
    assert noisy.enough(200, 0.1, times(200, noise=0.3, mine=1.0, best=1.0))


def test_the_budget_ends_it_and_begins_when_the_hopeless_are_gone():
    assert rule().enough(30, 2.0, times(30, noise=0.3, mine=1.0, best=1.0))
    behind_a_slow_one = rule()
    # A baseline of six seconds a call does not use up the budget of the other arms.
    assert not behind_a_slow_one.enough(MIN_ROUNDS_EVER, 30.0, times(5, mine=1.0, best=1.0))
    assert not behind_a_slow_one.enough(19, 30.1, times(19, mine=1.0, best=1.0))
    noisy = times(30, noise=0.3, mine=1.0, best=1.0)
    assert not behind_a_slow_one.enough(30, 31.9, noisy)
    assert behind_a_slow_one.enough(30, 32.0, noisy)


def test_a_slow_candidate_ends_it_before_the_least_rounds():
    slow = rule()
    assert not slow.enough(MIN_ROUNDS_EVER - 1, 60.0, times(4, mine=9e3, best=1.0))
    assert not slow.enough(MIN_ROUNDS_EVER, 75.0, times(5, mine=9e3, best=1.0))
    assert not slow.enough(MIN_ROUNDS_EVER + 1, 78.9, times(6, mine=9e3, best=1.0))
    assert slow.enough(MIN_ROUNDS_EVER + 1, 79.0, times(6, mine=9e3, best=1.0))


def test_the_hopeless_leave_early():
    taken = times(5, mine=9.0, best=1.0, near=2.9, far=3.1, control=0.5, sleeper=9.0)
    assert rule().active(MIN_ROUNDS_EVER - 1, taken) == set(taken)
    assert rule().active(MIN_ROUNDS_EVER, taken) == {"mine", "best", "near", "control"}


def test_one_clear_sample_in_five_keeps_a_baseline():
    """Three of the baseline's five samples are disturbed, and none of the others'."""
    taken = times(5, mine=1.0, best=1.0, near=1.1, far=1.2)
    taken["far"][:3] = [4.0, 4.5, 5.0]
    assert rule().active(MIN_ROUNDS_EVER, taken) == {"mine", "best", "near", "far"}


@pytest.mark.parametrize("rounds", [5, 20, 100])
def test_the_second_best_baseline_stays_since_the_best_may_be_rejected(rounds):
    taken = times(rounds, mine=0.4, best=0.1, near=0.9)
    assert rule().active(rounds, taken) == {"mine", "best", "near"}
    assert rule().active(rounds, taken | times(rounds, far=0.95)) == {"mine", "best", "near"}


def test_the_second_best_baseline_may_not_eat_the_budget():
    taken = times(5, mine=0.4, best=0.1, near=500.0)
    assert rule().active(5, taken) == {"mine", "best"}


def test_every_candidate_must_be_known_well_enough():
    both = StopAtRatioCI(MODEL, {"mine", "other"}, {"best"}, set())
    taken = times(40, mine=1.0, best=1.0) | times(40, noise=0.3, other=1.0)
    assert not both.enough(40, 0.1, taken)


def test_baselines_alone_are_enough_after_the_least_rounds():
    assert StopAtRatioCI(MODEL, set(), {"best"}, set()).enough(
        20, 0.1, times(20, noise=0.3, best=1.0)
    )


def test_only_contenders_go_on():
    taken = times(20, mine=9.0, best=1.0, near=1.09, far=1.12, control=0.5)
    assert rule().active(19, times(19, best=1.0, near=1.09, far=1.12)) == {"best", "near", "far"}
    assert rule().active(20, taken) == {"mine", "best", "near"}


def test_without_a_baseline_all_go_on_and_no_ratio_is_waited_for():
    taken = times(20, noise=0.3, mine=1.0)
    assert rule().active(20, taken) == {"mine"}
    assert rule().enough(20, 0.1, taken)


def test_a_fixed_count_is_waited_for_by_all():
    built = sampling.make_rule(FixedCount(kind="fixed_count", rounds=5), {"mine"}, {"best"}, set())
    assert not built.enough(4, 1e9, {}) and built.enough(5, 0.0, {})
    assert built.active(5, {"mine": [], "best": []}) == {"mine", "best"}


def test_alternatives_are_ranked_among_themselves():
    """The best alternative is measured as long as the best baseline. An alternative far behind it
    stops early."""

    def ruled():
        return StopAtRatioCI(MODEL, {"mine"}, {"best", "far"}, {"dense", "slow", "slower"})

    whole = ruled()
    early = times(MIN_ROUNDS_EVER, mine=1.0, best=9.0, far=99.0, dense=0.1, slow=0.2, slower=3.0)
    assert whole.active(MIN_ROUNDS_EVER, early) == {"mine", "best", "far", "dense", "slow"}
    late = times(20, mine=1.0, best=9.0, dense=0.1, slow=0.2)
    assert whole.active(20, late) >= {"mine", "best", "dense"}
    noisy = times(20, mine=1.0, best=9.0) | times(20, noise=0.3, dense=0.1)
    assert not whole.enough(20, 0.1, noisy)
    assert ruled().enough(20, 0.1, times(20, mine=1.0, best=9.0, dense=0.1))

"""Stopping rules: when there are enough samples, and which kernels still need some."""

import numpy as np
import pytest

from nsabench.model.case import FixedCount, RatioCI
from nsabench.worker.timing import sampling
from nsabench.worker.timing.sampling import MIN_ROUNDS_EVER, StopAtRatioCI

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
    # Five rounds with a baseline of six seconds a call took the time of the other arms.
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
    """A neighbour disturbed three of its five samples, not the other baselines'."""
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

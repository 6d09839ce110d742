"""Quantiles and ratios of medians: known answers, and how often intervals hold the truth."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsabench.model.measurement import Samples
from nsabench.verdicts.statistics import (
    COUNTED,
    RESAMPLES,
    geometric_mean,
    quantile,
    ratio_of_independent_medians,
    ratio_of_medians,
    ratio_of_rounds,
)
from nsabench.verdicts.verdict import TooFewRounds, paired_ratio

Times = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=60)


@pytest.mark.parametrize(
    ("samples", "q", "expected"),
    [([3.0], 0.5, 3.0), ([4, 1, 3, 2], 0.5, 2.5), ([1, 2, 3, 4, 5], 0.2, 1.8), ([1, 9], 1.0, 9.0)],
)
def test_quantiles_are_the_textbooks(samples, q, expected):
    assert quantile(samples, q) == pytest.approx(expected)


def test_constant_samples_have_an_interval_of_no_width():
    ratio = ratio_of_medians([3.0] * 9, [2.0] * 9)
    assert (ratio.value, ratio.lo, ratio.hi, ratio.width) == (1.5, 1.5, 1.5, 0.0)


@given(times=Times, factor=st.floats(0.01, 100))
def test_an_arm_that_is_always_a_factor_slower_has_exactly_that_ratio(times, factor):
    """Drift or a throttled clock affects both kernels and cancels, because rounds are resampled
    whole."""
    ratio = ratio_of_medians([factor * t for t in times], times, resamples=50)
    assert ratio.value == pytest.approx(factor)
    assert (ratio.lo, ratio.hi) == pytest.approx((factor, factor))


@given(a=Times, unit=st.floats(1e-3, 1e3))
def test_the_unit_of_time_does_not_matter(a, unit):
    b = a[::-1]
    one = ratio_of_medians(a, b, resamples=50)
    other = ratio_of_medians([unit * t for t in a], [unit * t for t in b], resamples=50)
    assert (other.value, other.lo, other.hi) == pytest.approx((one.value, one.lo, one.hi))


@given(a=Times)
def test_the_interval_is_in_order(a):
    ratio = ratio_of_medians(a, a[::-1], resamples=50)
    assert 0 < ratio.lo <= ratio.hi


def test_the_interval_covers_the_truth_as_often_as_it_says():
    """A case drifts by 30 %, and arms have noise of 3 %. Unpaired intervals would be far wider."""
    rng = np.random.default_rng(7)
    rounds, truth, covered, widths = 80, 1.1, 0, []
    for _ in range(300):
        drift = np.linspace(1, 1.3, rounds)
        a = truth * drift * (1 + 0.03 * rng.standard_normal(rounds))
        b = drift * (1 + 0.03 * rng.standard_normal(rounds))
        ratio = ratio_of_medians(a, b, resamples=300)
        covered += ratio.lo <= truth <= ratio.hi
        widths.append(ratio.width)
    assert 0.9 <= covered / 300 <= 1.0
    assert np.mean(widths) < 0.06


def draw_noise(rng, rounds, correlation):
    """Draw an autoregressive series with a standard deviation of 1."""
    series = rng.standard_normal(rounds)
    for i in range(1, rounds):
        series[i] = correlation * series[i - 1] + math.sqrt(1 - correlation**2) * series[i]
    return series


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
def test_the_interval_covers_the_truth_of_correlated_rounds(correlation):
    rng, truth, covered = np.random.default_rng(11), 1.01, 0
    for _ in range(300):
        a, b = (np.exp(0.01 * draw_noise(rng, 100, correlation)) for _ in range(2))
        ratio = ratio_of_rounds([*(truth * a)], [*b])
        covered += ratio.lo <= truth <= ratio.hi
    assert 0.93 <= covered / 300 <= 0.975


@pytest.mark.parametrize("rounds", [25, 100])
def test_rounds_that_alternate_widen_no_interval(rounds):
    rng = np.random.default_rng(13)
    off = 0.01 * rng.uniform(0.5, 1.5, rounds) * (-1) ** np.arange(rounds)
    arms = [*(1.2 * (1 + off))], [*rng.uniform(0.9999, 1.0001, rounds)]
    plain, found = ratio_of_medians(*arms), ratio_of_rounds(*arms)
    assert found.hi / found.value - 1 == pytest.approx(plain.hi / plain.value - 1, rel=0.01)


@pytest.mark.parametrize("noise", [0.002, 0.02])
def test_the_interval_covers_the_truth_of_a_coarse_clock(noise):
    """The clock's tick is 2 % of a call."""
    rng, truth, tick, covered = np.random.default_rng(12), 1.01, 0.02, 0
    for _ in range(300):
        work = 1 + tick * rng.random()
        a, b = (np.exp(noise * rng.standard_normal(100)) for _ in range(2))
        read = [[*(np.round(x / tick) * tick)] for x in (truth * work * a, work * b)]
        ratio = ratio_of_rounds(read[0], read[1])
        covered += ratio.lo <= truth <= ratio.hi
    assert covered / 300 >= 0.93


def test_one_disturbed_round_is_no_tick_of_the_clock():
    ratio = ratio_of_rounds([7.168] * 29 + [40.96], [5.12] * 30)
    assert (ratio.lo, ratio.hi) == pytest.approx((1.4, 1.4))


@pytest.mark.parametrize("rounds", [1, 2, 5, 8, 40, 41, COUNTED, COUNTED + 1])
@pytest.mark.parametrize("digits", [1, 9])
def test_the_interval_is_that_of_resamples_drawn_and_sorted(rounds, digits):
    """Intervals of published runs come out again to the last bit, also with a coarse clock."""
    rng = np.random.default_rng(rounds)
    a, b = np.round(rng.lognormal(size=(2, rounds)), digits) + 0.1
    pick = np.random.default_rng(0).integers(0, rounds, (500, rounds))
    drawn = np.median(a[pick], axis=1) / np.median(b[pick], axis=1)
    ratio = ratio_of_medians(a, b, resamples=500)
    assert (ratio.lo, ratio.hi) == tuple(np.quantile(drawn, [0.025, 0.975]))
    assert ratio.value == np.median(a) / np.median(b)


def test_of_what_is_no_number_there_is_no_ratio():
    ratio = ratio_of_medians([1.0, math.nan, 2.0, 3.0, 4.0], [1.0] * 5)
    assert all(map(math.isnan, (ratio.value, ratio.lo, ratio.hi)))


@pytest.mark.parametrize(("a", "b"), [([], []), ([1.0], [1.0, 2.0])])
def test_what_is_no_pair_is_refused(a, b):
    with pytest.raises(ValueError, match="paired samples needed"):
        ratio_of_medians(a, b)


def test_only_rounds_that_both_arms_have_form_pairs():
    """One arm was dropped after round 6, the other missed round 1."""
    first = Samples(round=list(range(7)), time_ms=[1.0, 90.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    second = Samples(round=[0, *range(2, 8)], time_ms=[2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 90.0])
    ratio = paired_ratio(first, second)
    assert (ratio.value, ratio.lo) == pytest.approx((0.5, 0.5), rel=0.2)
    with pytest.raises(TooFewRounds):
        paired_ratio(Samples(round=[0], time_ms=[1.0]), Samples(round=[1], time_ms=[1.0]))


@pytest.mark.parametrize(("n", "m"), [(1, 1), (2, 3), (20, 21), (200, 50)])
def test_the_interval_is_that_of_a_bootstrap_that_draws_everything(n, m):
    rng = np.random.default_rng(3)
    a, b = rng.lognormal(0, 0.2, n), rng.lognormal(0.1, 0.1, m)
    ours = ratio_of_independent_medians(a, b)
    drawn = [np.median(x[rng.integers(0, x.size, (40_000, x.size))], axis=1) for x in (a, b)]
    ratios = drawn[0] / drawn[1]
    assert ours.value == np.median(a) / np.median(b)
    # Each end of our interval leaves 2.5 % outside, within four standard errors of its resamples.
    # Few samples give few ratios, so an end may be between two of them.
    error = 4 * (0.025 * 0.975 / RESAMPLES) ** 0.5
    for end, outward in ((ours.lo, ratios), (-ours.hi, -ratios)):
        just_inside = outward[outward >= end - 1e-9].min()
        assert (
            (outward < end - 1e-9).mean() - error
            <= 0.025
            <= (outward <= just_inside).mean() + error
        )


def test_the_interval_of_independent_samples_covers_the_truth():
    rng = np.random.default_rng(4)
    covered = 0
    for _ in range(400):
        ratio = ratio_of_independent_medians(
            1.1 * rng.lognormal(0, 0.05, 60), rng.lognormal(0, 0.05, 40)
        )
        covered += ratio.lo <= 1.1 <= ratio.hi
    assert 0.92 < covered / 400 < 0.985


def test_an_arm_without_samples():
    with pytest.raises(ValueError):
        ratio_of_independent_medians([], [1.0])


def test_the_average_treats_twice_and_half_alike():
    assert geometric_mean([2.0, 0.5]) == pytest.approx(1.0)
    assert geometric_mean([]) is None

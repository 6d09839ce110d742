"""Intervals of ratios of medians."""

from __future__ import annotations

import numpy as np
import pytest

from nsabench.verdicts.statistics import RESAMPLES, geometric_mean, ratio_of_independent_medians


@pytest.mark.parametrize(("n", "m"), [(1, 1), (2, 3), (20, 21), (200, 50)])
def test_the_interval_is_that_of_a_bootstrap_that_draws_everything(n: int, m: int) -> None:
    rng = np.random.default_rng(3)
    a, b = rng.lognormal(0, 0.2, n), rng.lognormal(0.1, 0.1, m)
    ours = ratio_of_independent_medians(a, b)
    drawn = [np.median(x[rng.integers(0, x.size, (40_000, x.size))], axis=1) for x in (a, b)]
    ratios = drawn[0] / drawn[1]
    assert ours.value == np.median(a) / np.median(b)
    # An end of ours leaves 2.5 % outside, within four standard errors of its resamples. Few samples
    # have few ratios, and an end may lie between two of them.
    error = 4 * (0.025 * 0.975 / RESAMPLES) ** 0.5
    for end, outward in ((ours.lo, ratios), (-ours.hi, -ratios)):
        just_inside = outward[outward >= end - 1e-9].min()
        assert (
            (outward < end - 1e-9).mean() - error
            <= 0.025
            <= (outward <= just_inside).mean() + error
        )


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(4)
    covered = 0
    for _ in range(400):
        ratio = ratio_of_independent_medians(
            1.1 * rng.lognormal(0, 0.05, 60), rng.lognormal(0, 0.05, 40)
        )
        covered += ratio.lo <= 1.1 <= ratio.hi
    assert 0.92 < covered / 400 < 0.985


def test_an_arm_without_samples() -> None:
    with pytest.raises(ValueError, match="got 0 and 1"):
        ratio_of_independent_medians([], [1.0])


def test_the_average_treats_twice_and_half_alike() -> None:
    assert geometric_mean([2.0, 0.5]) == pytest.approx(1.0)
    assert geometric_mean([]) is None

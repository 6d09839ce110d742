"""Compute quantiles, and ratios of medians of paired or independent samples with intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

RESAMPLES = 2000
SEED = 0
COUNTED = 255  # the most rounds whose counts fit a byte
# Fewer rounds give no useful interval: with one, both ends are the ratio itself.
MIN_ROUNDS_EVER = 5
LONGEST_TICK = 0.1  # a tick of the clock is at most this share of the time of a call
ROUNDS_FOR_CORRELATION = 20  # fewer rounds do not show how alike successive rounds are


@dataclass(frozen=True)
class Ratio:
    """A ratio of medians with its 95 % bootstrap interval."""

    value: float
    lo: float
    hi: float

    @property
    def width(self) -> float:
        return (self.hi - self.lo) / self.value

    def widened(self, times: float) -> Ratio:
        return Ratio(self.value, self.lo / times, self.hi * times)


def geometric_mean(values: Iterable[float]) -> float | None:
    logs = [math.log(v) for v in values]
    return math.exp(sum(logs) / len(logs)) if logs else None


def quantile(samples: Iterable[float], q: float) -> float:
    return quantiles(samples, q)[0]


def quantiles(samples: Iterable[float], *qs: float) -> list[float]:
    """Return what `numpy.quantile` returns, to the last bit, but much faster for few samples."""
    ordered = sorted(map(float, samples))
    if any(map(math.isnan, ordered)):
        return [math.nan] * len(qs)
    last = len(ordered) - 1
    found = []
    for q in qs:
        place = last * q
        below = min(int(place), last)
        low, high, part = ordered[below], ordered[min(below + 1, last)], place - below
        is_near_high = part >= 0.5
        found.append(
            high - (high - low) * (1 - part) if is_near_high else low + (high - low) * part
        )
    return found


def ratio_of_medians(
    numerator: ArrayLike, denominator: ArrayLike, *, resamples: int = RESAMPLES
) -> Ratio:
    """Return median(numerator) / median(denominator), with a percentile bootstrap over pairs.

    Entry i of each argument is of round i. Rounds are resampled whole, so common drift cancels.
    """
    a: NDArray[np.float64] = np.asarray(numerator, dtype=np.float64)
    b: NDArray[np.float64] = np.asarray(denominator, dtype=np.float64)
    if a.shape != b.shape or a.size == 0:
        raise ValueError(f"paired samples needed, got {a.size} and {b.size}")
    above, drawn_above = _resample_medians(a.tobytes(), resamples)
    below, drawn_below = _resample_medians(b.tobytes(), resamples)
    return _make_ratio(above / below, drawn_above / drawn_below)


def _make_ratio(value: float, drawn: NDArray[np.float64]) -> Ratio:
    lo, hi = np.quantile(drawn, (0.025, 0.975))
    return Ratio(value, float(lo), float(hi))


def ratio_of_rounds(numerator: Sequence[float], denominator: Sequence[float]) -> Ratio:
    """Return `ratio_of_medians`, widened for correlated rounds and the tick of the clock."""
    ratio = ratio_of_medians(numerator, denominator)
    value, stretch = ratio.value, _stretch_for_correlation(numerator, denominator)
    below, above = value / min(ratio.lo, value) - 1, max(ratio.hi, value) / value - 1
    tick = _clock_tick(numerator, denominator)
    off = sum(tick / 2 / quantile(times, 0.5) for times in (numerator, denominator))
    stretched = Ratio(value, value / (1 + stretch * below), value * (1 + stretch * above))
    return stretched.widened(1 + off)


def _stretch_for_correlation(numerator: Sequence[float], denominator: Sequence[float]) -> float:
    """Return the factor by which correlation between successive rounds lengthens an interval.

    n rounds whose ratios have an autocorrelation of r count as n (1 - r) / (1 + r). The estimate of
    r is corrected for its bias (Kendall, Biometrika 41, 1954), and the factor for Student's t.
    """
    n = len(numerator)
    if n < ROUNDS_FOR_CORRELATION:
        return 1.0
    ratios = [a / b for a, b in zip(numerator, denominator, strict=True)]
    # Exact sums are the same on every CPU, so that a run can be verified elsewhere.
    mean = math.fsum(ratios) / n
    off = [ratio - mean for ratio in ratios]
    squares = math.fsum(x * x for x in off)
    if not squares > 0:
        return 1.0
    products = math.fsum(x * y for x, y in pairwise(off))
    correlation = min(max((n * products / squares + 1) / (n - 3), 0.0), 0.99)
    independent = n * (1 - correlation) / (1 + correlation)
    return math.sqrt(n / independent) * (1 + 1.25 / independent - 1.25 / n)


def _clock_tick(*arms: Sequence[float]) -> float:
    """Return the smallest difference between samples of an arm that are not equal, or 0."""
    # A sample that is much longer than the others was disturbed: that difference is not a tick.
    differences = np.concatenate([np.diff(np.unique(times)) for times in arms])
    ticks = differences[differences < LONGEST_TICK * min(map(min, arms))]
    return float(ticks.min()) if ticks.size else 0.0


def _pick_rounds(rounds: int, resamples: int, seed: int) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(0, rounds, (resamples, rounds))


@lru_cache(maxsize=32)
def _count_rounds(rounds: int, resamples: int, seed: int) -> NDArray[np.uint8]:
    """Count how often each round is in each resample [rounds, resamples], for all ratios."""
    places = _pick_rounds(rounds, resamples, seed) + rounds * np.arange(resamples)[:, None]
    counts = np.bincount(places.ravel(), minlength=rounds * resamples)
    return np.ascontiguousarray(counts.reshape(resamples, rounds).T, dtype=np.uint8)


@lru_cache(maxsize=64)
def _resample_medians(
    times: bytes, resamples: int, seed: int = SEED
) -> tuple[float, NDArray[np.float64]]:
    """Return the median of samples, and the medians of their resamples [resamples].

    In ascending order of the samples, their counts are added up, for all resamples at once. Where
    the sum reaches half, the median is found, faster than by sorting. `times` holds float64.
    """
    samples = np.frombuffer(times, dtype=np.float64)
    n = samples.size
    if n > COUNTED:
        picked = samples[_pick_rounds(n, resamples, seed)]
        return float(np.median(samples)), np.median(picked, axis=1)
    order = np.argsort(samples)
    ordered = samples[order]
    if np.isnan(ordered[-1]):
        return math.nan, np.full(resamples, math.nan)
    drawn = _count_rounds(n, resamples, seed)
    half = (n + 1) // 2
    reached, lower, upper = np.zeros((3, resamples), np.uint8)
    for sample in order[:-1]:
        reached += drawn[sample]
        lower += (reached < half).view(np.uint8)
        if n % 2 == 0:
            upper += (reached <= half).view(np.uint8)
    middle: NDArray[np.float64] = ordered[lower]
    if n % 2:
        return float(ordered[half - 1]), middle
    return float((ordered[half - 1] + ordered[half]) / 2), (middle + ordered[upper]) / 2


def ratio_of_independent_medians(
    numerator: ArrayLike, denominator: ArrayLike, less: tuple[float, float] = (0.0, 0.0)
) -> Ratio:
    """Return median(numerator) / median(denominator) of samples that were not taken together.

    `less` is first subtracted from the medians. Raises `ValueError` if nothing is left of one.
    """
    arms = [np.asarray(samples, dtype=np.float64) for samples in (numerator, denominator)]
    if not all(arm.size for arm in arms):
        raise ValueError(f"samples of both arms needed, got {arms[0].size} and {arms[1].size}")
    medians, drawn = [], []
    for seed, (arm, offset) in enumerate(zip(arms, less, strict=True)):
        median, resampled = _resample_medians(arm.tobytes(), RESAMPLES, seed)
        if median <= offset or resampled.min() <= offset:
            raise ValueError("nothing is left of a median")
        medians.append(median - offset)
        drawn.append(resampled - offset)
    return _make_ratio(medians[0] / medians[1], drawn[0] / drawn[1])

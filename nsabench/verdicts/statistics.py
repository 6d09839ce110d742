"""Quantiles, and ratios of medians with intervals, for paired and for independent samples."""

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
FEW = 200  # a list of so many samples is sorted faster than numpy makes an array of it.
COUNTED = 255  # the most rounds that a byte counts.
# Fewer rounds give no useful interval: with one, both ends are the ratio itself.
MIN_ROUNDS_EVER = 5
ROUNDS_FOR_CORRELATION = 20  # fewer say too little about how alike successive rounds are.


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
        """Return the ratio with both ends of its interval moved outwards by a factor."""
        return Ratio(self.value, self.lo / times, self.hi * times)


def geometric_mean(values: Iterable[float]) -> float | None:
    """Return the geometric mean, or None without values."""
    logs = [math.log(v) for v in values]
    return math.exp(sum(logs) / len(logs)) if logs else None


def quantile(samples: ArrayLike, q: float) -> float:
    return quantiles(samples, q)[0]


def quantiles(samples: ArrayLike, *qs: float) -> list[float]:
    """Return quantiles, equal to numpy's to the last bit. Numpy takes 20 times as long for a few
    samples."""
    if not isinstance(samples, list) or not 0 < len(samples) <= FEW:
        return [float(x) for x in np.quantile(np.asarray(samples, dtype=np.float64), qs)]
    ordered = sorted(map(float, samples))
    if math.isnan(sum(ordered)) and any(map(math.isnan, ordered)):  # inf - inf
        return [math.nan] * len(qs)
    places = [_locate(len(ordered), q) for q in qs]
    last = len(ordered) - 1
    return [_interpolate(ordered[at], ordered[min(at + 1, last)], part) for at, part in places]


def _locate(count: int, q: float) -> tuple[int, float]:
    """Return the index of the ordered value below a quantile, and the share of the way to the
    next value."""
    place = (count - 1) * q
    below = min(int(place), count - 1)
    return below, place - below


def _interpolate(low: float, high: float, part: float) -> float:
    return high - (high - low) * (1 - part) if part >= 0.5 else low + (high - low) * part


def _interval(drawn: NDArray[np.float64]) -> tuple[float, float]:
    """Return the 2.5 and 97.5 % quantiles of at least two values."""
    if np.isnan(drawn).any():
        return math.nan, math.nan
    (first, low_part), (last, high_part) = (_locate(drawn.size, q) for q in (0.025, 0.975))
    ordered = np.partition(drawn, (first, first + 1, last, last + 1))
    ends = [float(ordered[place]) for place in (first, first + 1, last, last + 1)]
    return _interpolate(ends[0], ends[1], low_part), _interpolate(ends[2], ends[3], high_part)


def ratio_of_medians(
    numerator: ArrayLike, denominator: ArrayLike, *, resamples: int = RESAMPLES
) -> Ratio:
    """Return median(numerator) / median(denominator), with a percentile bootstrap over pairs.

    Entry i of both was taken in round i. Rounds are resampled whole, so drift that hits both arms
    cancels. Raises `ValueError` if the lengths differ or are 0.
    """
    a: NDArray[np.float64] = np.asarray(numerator, dtype=np.float64)
    b: NDArray[np.float64] = np.asarray(denominator, dtype=np.float64)
    if a.shape != b.shape or a.size == 0:
        raise ValueError(f"paired samples needed, got {a.size} and {b.size}")
    if a.size <= COUNTED:
        (above, drawn), (below, under) = (_resample_medians(x.tobytes(), resamples) for x in (a, b))
        return Ratio(above / below, *_interval(drawn / under))
    pick = _pick_rounds(a.size, resamples)
    ratios = np.median(a[pick], axis=1) / np.median(b[pick], axis=1)
    return Ratio(float(np.median(a) / np.median(b)), *_interval(ratios))


def ratio_of_rounds(numerator: Sequence[float], denominator: Sequence[float]) -> Ratio:
    """Return `ratio_of_medians`, with the interval widened by what a bootstrap does not see.

    Successive rounds that are alike count as fewer rounds, and each median may be off by half of a
    tick of the clock.
    """
    ratio = ratio_of_medians(numerator, denominator)
    value, stretch = ratio.value, _stretch_for_correlation(numerator, denominator)
    below, above = value / min(ratio.lo, value) - 1, max(ratio.hi, value) / value - 1
    tick = _clock_tick([*numerator, *denominator])
    off = sum(tick / 2 / quantile(times, 0.5) for times in (numerator, denominator))
    stretched = Ratio(value, value / (1 + stretch * below), value * (1 + stretch * above))
    return stretched.widened(1 + off)


def _stretch_for_correlation(numerator: Sequence[float], denominator: Sequence[float]) -> float:
    """Return how much longer the interval is than that of as many independent rounds.

    n rounds whose ratios have an autocorrelation of r count as n (1 - r) / (1 + r). The estimate of
    r is corrected for its bias (Kendall, Biometrika 41, 1954), and the interval for Student's t.
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


def _clock_tick(times: Sequence[float]) -> float:
    """Return the smallest difference between samples that are not equal, or 0."""
    differences = np.diff(np.unique(times))
    return float(differences.min()) if differences.size else 0.0


def _pick_rounds(rounds: int, resamples: int) -> NDArray[np.int64]:
    """Draw the rounds of each resample [resamples, rounds]."""
    return np.random.default_rng(SEED).integers(0, rounds, (resamples, rounds))


@lru_cache(maxsize=32)
def _count_rounds(rounds: int, resamples: int) -> NDArray[np.uint8]:
    """Count how often each round is in each resample [rounds, resamples]. The counts do not depend
    on the samples, so thousands of ratios share them."""
    places = _pick_rounds(rounds, resamples) + rounds * np.arange(resamples)[:, None]
    counts = np.bincount(places.ravel(), minlength=rounds * resamples)
    return np.ascontiguousarray(counts.reshape(resamples, rounds).T, dtype=np.uint8)


@lru_cache(maxsize=64)
def _resample_medians(times: bytes, resamples: int) -> tuple[float, NDArray[np.float64]]:
    """Return the median of samples, and the medians of their resamples [resamples].

    The samples are visited in ascending order, and their counts are added up in all resamples at
    once: the median is where half is reached. That takes a tenth of the time of sorting each
    resample. Results are kept, because one arm is compared with several. times: float64 [n].
    """
    samples = np.frombuffer(times, dtype=np.float64)
    n = samples.size
    order = np.argsort(samples)
    ordered = samples[order]
    if np.isnan(ordered[-1]):
        return math.nan, np.full(resamples, math.nan)
    drawn = _count_rounds(n, resamples)
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


def ratio_of_independent_medians(numerator: ArrayLike, denominator: ArrayLike) -> Ratio:
    """Return median(numerator) / median(denominator) of samples that were not taken together.

    A percentile bootstrap resamples each arm on its own. It does not include what differs between
    two processes or machines. Raises `ValueError` if an arm has no sample.
    """
    return ratio_of_independent_arms([Arm(numerator)], [Arm(denominator)])


# For each resample: the indices of the lower and, for even sizes, the upper middle sorted sample.
_Middles = tuple[NDArray[np.intp], NDArray[np.intp] | None]


@dataclass(frozen=True)
class Arm:
    """Samples that were taken together. less: is subtracted from their median, in their unit."""

    samples: ArrayLike
    less: float = 0.0


def ratio_of_independent_arms(above: Sequence[Arm], below: Sequence[Arm]) -> Ratio:
    """Return the product of the medians of `above` over the product for `below`.

    `less` is subtracted from each median first. A percentile bootstrap resamples each arm on its
    own. Raises `ValueError` if an arm has no sample, or if nothing is left of a median.
    """
    if not all(np.size(arm.samples) for arm in (*above, *below)):
        raise ValueError(
            "samples of all arms needed, got "
            + " and ".join(str(np.size(arm.samples)) for arm in (*above, *below))
        )
    sizes = tuple(int(np.size(arm.samples)) for arm in (*above, *below))
    middles = _draw_middles(sizes)
    value, drawn = _multiply_medians(above, middles[: len(above)])
    under, drawn_under = _multiply_medians(below, middles[len(above) :])
    lo, hi = np.quantile(drawn / drawn_under, [0.025, 0.975])
    return Ratio(value / under, float(lo), float(hi))


def _multiply_medians(
    arms: Sequence[Arm], middles: Sequence[_Middles]
) -> tuple[float, NDArray[np.float64]]:
    """Return the product of the medians of arms, and of the medians of their resamples [RESAMPLES].

    The caller divides once: arms that are the same on both sides then give exactly 1.
    """
    value = 1.0
    drawn = np.ones(RESAMPLES)
    for arm, (lower, upper) in zip(arms, middles, strict=True):
        ordered = np.sort(np.asarray(arm.samples, dtype=np.float64), axis=None)
        median = float(np.median(ordered)) - arm.less
        resampled = ordered[lower]
        if upper is not None:
            resampled = (resampled + ordered[upper]) / 2
        resampled = resampled - arm.less
        if median <= 0 or resampled.min() <= 0:
            raise ValueError("nothing is left of a median")
        value *= median
        drawn *= resampled
    return value, drawn


@lru_cache(maxsize=64)  # 0.1 MB each; most arms of a comparison have one of a few sizes
def _draw_middles(sizes: tuple[int, ...]) -> tuple[_Middles, ...]:
    """Draw which sorted samples are in the middle of each resample, for arms of these sizes.

    The k-th smallest of n uniform picks is Beta(k, n + 1 - k). The next is the smallest of the
    n - k picks above it (David & Nagaraja, Order Statistics, 2.1). So the middle is drawn directly,
    with the same distribution as if all n were drawn.
    """
    rng = np.random.default_rng(SEED)
    middles: list[_Middles] = []
    for n in sizes:
        k = (n + 1) // 2
        rank = rng.beta(k, n + 1 - k, RESAMPLES)
        lower = np.minimum((rank * n).astype(np.intp), n - 1)
        upper = None
        if n % 2 == 0:
            rank += (1 - rank) * (1 - rng.random(RESAMPLES) ** (1 / (n - k)))
            upper = np.minimum((rank * n).astype(np.intp), n - 1)
            upper.flags.writeable = False  # callers share it
        lower.flags.writeable = False
        middles.append((lower, upper))
    return tuple(middles)


def paired(
    round_a: list[int], time_a: list[float], round_b: list[int], time_b: list[float]
) -> tuple[list[float], list[float]]:
    b = dict(zip(round_b, time_b, strict=True))
    pairs = [(t, b[r]) for r, t in zip(round_a, time_a, strict=True) if r in b]
    return [p[0] for p in pairs], [p[1] for p in pairs]

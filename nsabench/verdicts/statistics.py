"""Quantiles, and the intervals of a ratio of medians: of paired and of independent samples."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

RESAMPLES = 2000
FEW = 200  # samples that are sorted faster than an array is made of them
COUNTED = 255  # rounds whose resamples are drawn once and kept: the most that a byte counts
# Fewer rounds give no interval to rely on: of one, both its ends are the ratio itself.
MIN_ROUNDS_EVER = 5


@dataclass(frozen=True)
class Ratio:
    """A ratio of medians with its 95 % bootstrap interval."""

    value: float
    lo: float
    hi: float

    @property
    def width(self) -> float:
        """Relative width of the interval."""
        return (self.hi - self.lo) / self.value

    def widened(self, times: float) -> Ratio:
        """The same with an interval that reaches so many times as far on either side."""
        return Ratio(self.value, self.lo / times, self.hi * times)


def geometric_mean(values: Iterable[float]) -> float | None:
    """The mean that treats 2x and 0.5x alike; None of nothing."""
    logs = [math.log(v) for v in values]
    return math.exp(sum(logs) / len(logs)) if logs else None


def quantile(samples: ArrayLike, q: float) -> float:
    """The same number as numpy's, which takes twenty times as long for a few samples."""
    return quantiles(samples, q)[0]


def quantiles(samples: ArrayLike, *qs: float) -> list[float]:
    """Several of the same samples, which are put in order once."""
    if not isinstance(samples, list) or not 0 < len(samples) <= FEW:
        return [float(x) for x in np.quantile(np.asarray(samples, dtype=np.float64), qs)]
    ordered = sorted(map(float, samples))
    if math.isnan(sum(ordered)) and any(map(math.isnan, ordered)):  # of infinities, a sum is, too
        return [math.nan] * len(qs)
    places = [_place(len(ordered), q) for q in qs]
    last = len(ordered) - 1
    return [_between(ordered[at], ordered[min(at + 1, last)], part) for at, part in places]


def _place(count: int, q: float) -> tuple[int, float]:
    """Behind which of so many ordered values a quantile lies, and how far on to the next."""
    place = (count - 1) * q
    below = min(int(place), count - 1)
    return below, place - below


def _between(low: float, high: float, part: float) -> float:
    return high - (high - low) * (1 - part) if part >= 0.5 else low + (high - low) * part


def _interval(drawn: NDArray[np.float64]) -> tuple[float, float]:
    """Between what 95 % of at least two values lie, the same numbers as numpy's quantiles."""
    if np.isnan(drawn).any():
        return math.nan, math.nan
    (first, one), (last, other) = (_place(drawn.size, q) for q in (0.025, 0.975))
    ordered = np.partition(drawn, (first, first + 1, last, last + 1))
    ends = [float(ordered[place]) for place in (first, first + 1, last, last + 1)]
    return _between(ends[0], ends[1], one), _between(ends[2], ends[3], other)


def ratio_of_medians(
    numerator: ArrayLike, denominator: ArrayLike, *, resamples: int = RESAMPLES, seed: int = 0
) -> Ratio:
    """median(numerator) / median(denominator), with a percentile bootstrap over pairs.

    Entry i of both was taken in the same round, so a round is resampled as a whole and drift that
    hits both arms cancels. Raises `ValueError` when the lengths differ or there is no pair.
    """
    a: NDArray[np.float64] = np.asarray(numerator, dtype=np.float64)
    b: NDArray[np.float64] = np.asarray(denominator, dtype=np.float64)
    if a.shape != b.shape or a.size == 0:
        raise ValueError(f"paired samples needed, got {a.size} and {b.size}")
    if a.size <= COUNTED:
        (above, drawn), (below, under) = (_medians(x.tobytes(), resamples, seed) for x in (a, b))
        return Ratio(above / below, *_interval(drawn / under))
    pick = _picks(a.size, resamples, seed)
    ratios = np.median(a[pick], axis=1) / np.median(b[pick], axis=1)
    return Ratio(float(np.median(a) / np.median(b)), *_interval(ratios))


def _picks(rounds: int, resamples: int, seed: int) -> NDArray[np.int64]:
    """The rounds of each resample [resamples, rounds]."""
    return np.random.default_rng(seed).integers(0, rounds, (resamples, rounds))


@lru_cache(maxsize=32)
def _drawn(rounds: int, resamples: int, seed: int) -> NDArray[np.uint8]:
    """How often each round is in each resample [rounds, resamples]. It hangs on nothing that was
    measured, so thousands of ratios share it."""
    places = _picks(rounds, resamples, seed) + rounds * np.arange(resamples)[:, None]
    counts = np.bincount(places.ravel(), minlength=rounds * resamples)
    return np.ascontiguousarray(counts.reshape(resamples, rounds).T, dtype=np.uint8)


@lru_cache(maxsize=64)
def _medians(times: bytes, resamples: int, seed: int) -> tuple[float, NDArray[np.float64]]:
    """The median of samples and those of their resamples [resamples]: the same numbers as of each
    resample sorted, for a tenth of the time. Kept, since one arm is held to several others.

    From the least sample on, it is counted in all resamples at once how many of theirs lie so low;
    the middle one is where half of them do. times: the samples [n], as float64.
    """
    samples = np.frombuffer(times, dtype=np.float64)
    n = samples.size
    order = np.argsort(samples)
    ordered = samples[order]
    if np.isnan(ordered[-1]):
        return math.nan, np.full(resamples, math.nan)
    drawn = _drawn(n, resamples, seed)
    half = (n + 1) // 2
    so_low, lower, upper = np.zeros((3, resamples), np.uint8)
    for one in order[:-1]:
        so_low += drawn[one]
        lower += (so_low < half).view(np.uint8)
        if n % 2 == 0:
            upper += (so_low <= half).view(np.uint8)
    middle: NDArray[np.float64] = ordered[lower]
    if n % 2:
        return float(ordered[half - 1]), middle
    return float((ordered[half - 1] + ordered[half]) / 2), (middle + ordered[upper]) / 2


def ratio_of_independent_medians(
    numerator: ArrayLike, denominator: ArrayLike, *, resamples: int = RESAMPLES, seed: int = 0
) -> Ratio:
    """median(numerator) / median(denominator) of samples that were not taken together.

    A percentile bootstrap that resamples each arm by itself. It knows nothing of what differs
    between two processes or machines. Raises `ValueError` when an arm has no sample.
    """
    return ratio_of_independent_arms(
        [Arm(numerator)], [Arm(denominator)], resamples=resamples, seed=seed
    )


# Of sorted samples, for each resample: the lower and, of an even number, the upper middle one.
_Middles = tuple[NDArray[np.intp], NDArray[np.intp] | None]


@dataclass(frozen=True)
class Arm:
    """Samples that were taken together. less: what is taken off their median, in their unit."""

    samples: ArrayLike
    less: float = 0.0


def ratio_of_independent_arms(
    above: Sequence[Arm], below: Sequence[Arm], *, resamples: int = RESAMPLES, seed: int = 0
) -> Ratio:
    """The product of the medians `above` over that of those `below`, each less what its arm says.

    A percentile bootstrap that resamples each arm by itself. Raises `ValueError` when an arm has no
    sample, or nothing is left of a median.
    """
    if not all(np.size(arm.samples) for arm in (*above, *below)):
        raise ValueError(
            "samples of all arms needed, got "
            + " and ".join(str(np.size(arm.samples)) for arm in (*above, *below))
        )
    sizes = tuple(int(np.size(arm.samples)) for arm in (*above, *below))
    middles = _middles_of(sizes, resamples, seed)
    value, drawn = _product(above, middles[: len(above)], resamples)
    under, drawn_under = _product(below, middles[len(above) :], resamples)
    lo, hi = np.quantile(drawn / drawn_under, [0.025, 0.975])
    return Ratio(value / under, float(lo), float(hi))


def _product(
    arms: Sequence[Arm], middles: Sequence[_Middles], resamples: int
) -> tuple[float, NDArray[np.float64]]:
    """The product of the medians of arms, and of the medians of their resamples [resamples].

    Products are divided once, by the caller: arms that are the same on both sides then give 1.
    """
    value = 1.0
    drawn = np.ones(resamples)
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


@lru_cache(maxsize=64)  # of 0.1 MB; most arms of a comparison are of a few sizes
def _middles_of(sizes: tuple[int, ...], count: int, seed: int) -> tuple[_Middles, ...]:
    """Of arms of so many samples [n], for each of `count` bootstrap resamples: which of the sorted
    samples is its median, or which two are around it, without drawing the rest.

    The k-th smallest of n uniform picks is Beta(k, n + 1 - k) (David & Nagaraja, Order Statistics,
    2.1), and the next one the smallest of the n - k that are left above it; so the picks in the
    middle are drawn at once, exactly as if all n had been.
    """
    rng = np.random.default_rng(seed)
    middles: list[_Middles] = []
    for n in sizes:
        k = (n + 1) // 2
        rank = rng.beta(k, n + 1 - k, count)
        lower = np.minimum((rank * n).astype(np.intp), n - 1)
        upper = None
        if n % 2 == 0:
            rank += (1 - rank) * (1 - rng.random(count) ** (1 / (n - k)))
            upper = np.minimum((rank * n).astype(np.intp), n - 1)
            upper.flags.writeable = False  # all callers have the same
        lower.flags.writeable = False
        middles.append((lower, upper))
    return tuple(middles)


def paired(
    round_a: list[int], time_a: list[float], round_b: list[int], time_b: list[float]
) -> tuple[list[float], list[float]]:
    """The times of the rounds that both arms have."""
    b = dict(zip(round_b, time_b, strict=True))
    pairs = [(t, b[r]) for r, t in zip(round_a, time_a, strict=True) if r in b]
    return [p[0] for p in pairs], [p[1] for p in pairs]

"""Quantiles, and the interval of a ratio of medians of paired samples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

RESAMPLES = 2000


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


def quantile(samples: ArrayLike, q: float) -> float:
    return float(np.quantile(np.asarray(samples, dtype=np.float64), q))


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
    pick = np.random.default_rng(seed).integers(0, a.size, (resamples, a.size))
    ratios = np.median(a[pick], axis=1) / np.median(b[pick], axis=1)
    lo, hi = np.quantile(ratios, [0.025, 0.975])
    return Ratio(float(np.median(a) / np.median(b)), float(lo), float(hi))


def paired(
    round_a: list[int], time_a: list[float], round_b: list[int], time_b: list[float]
) -> tuple[list[float], list[float]]:
    """The times of the rounds that both arms have."""
    b = dict(zip(round_b, time_b, strict=True))
    pairs = [(t, b[r]) for r, t in zip(round_a, time_a, strict=True) if r in b]
    return [p[0] for p in pairs], [p[1] for p in pairs]

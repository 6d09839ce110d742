"""How far times of the same code lie apart in two runs: learned from code that cannot have changed.

Hosts differ by more than the intervals of their times say, and short times by more than long ones.
So the band of a cell is the widest difference among the baselines of like duration that are known
to be the same code in both runs. Of 50 such, one more of the same code lies beyond with a chance of
1 in 51, whatever the distribution is (conformal prediction: Vovk, Gammerman, Shafer, Algorithmic
Learning in a Random World, 2.2).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

from nsabench.assessment.verdict import Key

# Where nothing is known to be the same code. "How well it measures" in
# docs/explanation/measurement.md: 97.6 % of medians within 3 %, and 99.6 % of those over 20 µs.
BAND = 0.05
# Hosts differ by more than devices; what two hosts, or two versions, cost a caller shows beyond it.
BAND_IN_QUEUE = 0.10
NEAREST = 50  # baselines by which a band is learned
FEWEST = 20  # fewer teach nothing
# What a timer's share is known to, ms: 4.3 to 4.5 µs were read on the GPUs of one host.
SHARE_ERROR_MS = 0.0002


@dataclass(frozen=True)
class Difference:
    """Two times of the same code: the time in the first run (ms), and how far apart, as |ln|."""

    time_ms: float
    apart: float
    key: Key


class Learned:
    """The bands of the cells of two runs that are measured in one way. least: of all bands."""

    def __init__(self, differences: Iterable[Difference], least: float) -> None:
        self._ordered = sorted(differences, key=lambda d: d.time_ms)
        self._times = [d.time_ms for d in self._ordered]
        self._least = least

    def __bool__(self) -> bool:
        return len(self._ordered) > FEWEST  # one of them may be the cell that is asked for

    def of(self, time_ms: float, key: Key) -> float:
        """The band of a cell as a share: it is left out where it is one of those learned from."""
        nearest = sorted(
            (d for d in self._around(time_ms) if d.key != key),
            key=lambda d: abs(math.log(d.time_ms / time_ms)),
        )[:NEAREST]
        return max(self._least, math.expm1(max(d.apart for d in nearest)))

    def _around(self, time_ms: float) -> list[Difference]:
        """Those among which the nearest are."""
        place = bisect_left(self._times, time_ms)
        return self._ordered[max(place - NEAREST - 1, 0) : place + NEAREST + 1]


def untaught(band: float, first_ms: float, later_ms: float, *, shares: bool) -> float:
    """The band where no baseline teaches one. shares: a timer's share was taken off both times."""
    if not shares:
        return band
    return band + SHARE_ERROR_MS * (1 / first_ms + 1 / later_ms)

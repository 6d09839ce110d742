"""Learns how far times of the same code lie apart in two runs, from code that cannot have changed.

Hosts differ by more than the intervals of their times say, and short times by more than long ones.
So the band of a cell is the widest difference among the baselines of like duration that are known
to be the same code in both runs. The chance that one more of the same code differs by more than 50
such baselines is 1 in 51, whatever the distribution is (conformal prediction: Vovk, Gammerman,
Shafer, Algorithmic Learning in a Random World, 2.2).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

from nsabench.model.plan import ImplementationInfo
from nsabench.model.record import Key
from nsabench.model.vocabulary import Role, Status
from nsabench.output.compare.side import Side

# The band if no code is known to be the same. "How well it measures" in
# docs/explanation/measurement.md: 97.6 % of medians within 3 %, and 99.6 % of those over 20 µs.
BAND = 0.05
# Hosts differ by more than devices; what two hosts, or two versions, cost a caller shows beyond it.
BAND_IN_QUEUE = 0.10
NEAREST = 50  # baselines by which a band is learned
FEWEST = 20  # fewer teach nothing
# What a timer's share is known to, ms: 4.3 to 4.5 µs were read on the GPUs of one host.
SHARE_ERROR_MS = 0.0002
# If one of these differs, no code is known to be the same on both devices.
ALIKE = ("device", "torch", "CUDA")
SHIPPED = "nsabench"


@dataclass(frozen=True)
class Known:
    """Two times of the same code: the time in the first run (ms), and how far apart, as |ln|."""

    time_ms: float
    apart: float
    key: Key


class Learned:
    """The bands of the cells of two runs that are measured in one way. least: of all bands."""

    def __init__(self, differences: Iterable[Known], least: float) -> None:
        self._ordered = sorted(differences, key=lambda d: d.time_ms)
        self._times = [d.time_ms for d in self._ordered]
        self._least = least

    def __bool__(self) -> bool:
        return len(self._ordered) > FEWEST  # one of them may be the cell that is asked for

    def band(self, time_ms: float, key: Key) -> float:
        """Return the band of a cell as a share, learned from the other cells."""
        place = bisect_left(self._times, time_ms)
        around = self._ordered[max(place - NEAREST - 1, 0) : place + NEAREST + 1]
        nearest = sorted(
            (d for d in around if d.key != key), key=lambda d: abs(math.log(d.time_ms / time_ms))
        )[:NEAREST]
        return max(self._least, math.expm1(max(d.apart for d in nearest)))


def same_code(first: Side, later: Side) -> dict[Key, Role]:
    """Return the baselines and alternatives that ran in both runs with the same device, torch,
    CUDA, source and library, and the same Triton if Triton compiles them."""
    if any(first.versions.get(name) != later.versions.get(name) for name in ALIKE):
        return {}
    same_triton = first.versions.get("triton") == later.versions.get("triton")
    theirs = {(i.op, i.name): i for i in later.plan.implementations}
    same = {
        (i.op, i.name): i.role
        for i in first.plan.implementations
        if (other := theirs.get((i.op, i.name))) is not None
        and i.role in (Role.BASELINE, Role.ALTERNATIVE)
        and i.origin == other.origin
        and (digest := first.plan.sources.get(i.source)) is not None
        and digest == later.plan.sources.get(other.source)
        and (same_triton or (_without_triton(i) and _without_triton(other)))
    }
    return {
        key: same[record.op, record.implementation]
        for key, record in first.records.items()
        if (record.op, record.implementation) in same
        and (other_record := later.records.get(key)) is not None
        and record.status is other_record.status is Status.OK
    }


def _without_triton(info: ImplementationInfo) -> bool:
    return info.source == SHIPPED and info.compiled_by == ""

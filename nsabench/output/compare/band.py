"""Learns by how much times differ between two runs, from code that did not change.

The band of a cell is the widest difference among the 50 unchanged baselines of nearest duration.
One more baseline exceeds that with a chance of 1 in 51, for any distribution (conformal prediction:
Vovk, Gammerman, Shafer, Algorithmic Learning in a Random World, 2.2).
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

# The band without unchanged code: 97.6 % of medians were within 3 %, and 99.6 % of those over 20 µs
# (docs/explanation/measurement.md, "How well it measures").
BAND = 0.05
# In the queue, hosts differ by more than devices.
BAND_IN_QUEUE = 0.10
NEAREST = 50  # baselines from which a band is learned.
FEWEST = 20
# The error of the timer's share (ms): the GPUs of one host read 4.3 to 4.5 µs.
SHARE_ERROR_MS = 0.0002
# If one of these differs, no code counts as unchanged.
ALIKE = ("device", "torch", "CUDA")
SHIPPED = "nsabench"


@dataclass(frozen=True)
class Known:
    """Two times of the same code. time_ms: in the first run; apart: |ln| of their ratio."""

    time_ms: float
    apart: float
    key: Key


class Learned:
    """The bands of cells that are measured in one way. least: the narrowest band."""

    def __init__(self, differences: Iterable[Known], least: float) -> None:
        self._ordered = sorted(differences, key=lambda d: d.time_ms)
        self._times = [d.time_ms for d in self._ordered]
        self._least = least

    def __bool__(self) -> bool:
        return len(self._ordered) > FEWEST

    def band(self, time_ms: float, key: Key) -> float:
        """Return the band of a cell as a share, learned from the other cells."""
        place = bisect_left(self._times, time_ms)
        around = self._ordered[max(place - NEAREST - 1, 0) : place + NEAREST + 1]
        nearest = sorted(
            (d for d in around if d.key != key), key=lambda d: abs(math.log(d.time_ms / time_ms))
        )[:NEAREST]
        return max(self._least, math.expm1(max(d.apart for d in nearest)))


def same_code(first: Side, later: Side) -> dict[Key, Role]:
    """Return the baselines and alternatives whose code and software are equal in both runs."""
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
        and (same_triton or (_needs_no_triton(i) and _needs_no_triton(other)))
    }
    return {
        key: same[record.op, record.implementation]
        for key, record in first.records.items()
        if (record.op, record.implementation) in same
        and (other_record := later.records.get(key)) is not None
        and record.status is other_record.status is Status.OK
    }


def _needs_no_triton(info: ImplementationInfo) -> bool:
    return info.source == SHIPPED and info.compiled_by == ""

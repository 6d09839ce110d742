"""How fast each implementation of an op is against the best alternative that ran beside it.

Which time counts is for the caller to say (`Clock`): that of the device, or that of calls that are
queued one behind the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from nsabench.assessment.checks.cases import by_case
from nsabench.assessment.checks.clocks import clock_spread
from nsabench.assessment.checks.row import Row
from nsabench.assessment.statistics import MIN_ROUNDS_EVER, Ratio, paired, ratio_of_medians
from nsabench.model.measurement import Bursts, Samples
from nsabench.model.vocabulary import Mode, Regime, Role, Status

Key = tuple[str, str]  # case id, implementation


@dataclass(frozen=True)
class Against:
    """ratio: time of the alternative over that of the implementation, above 1 where it pays."""

    alternative: str
    ratio: Ratio


class Clock(Protocol):
    """The times of a regime."""

    def rivals(self, valid: Sequence[Row]) -> Sequence[Row]:
        """Those of the valid rows of a case whose times may be held against each other."""
        ...

    def median_ms(self, row: Row) -> float | None:
        """Of a call; None where it was not timed in this regime."""
        ...

    def ratio(self, other: Row, row: Row) -> Ratio | None:
        """Time of the other over that of the row; None where too little was timed together."""
        ...


@dataclass(frozen=True)
class DeviceClock:
    """Samples of single calls, the launch gap hidden, paired by their round."""

    samples: Mapping[Key, Samples]

    def rivals(self, valid: Sequence[Row]) -> Sequence[Row]:
        """Those that were sampled to the end: clocks may have moved since an early round."""
        most = max((r.n_samples for r in valid), default=0)
        return [r for r in valid if r.n_samples == most]

    def median_ms(self, row: Row) -> float | None:
        return row.timed_ms

    def ratio(self, other: Row, row: Row) -> Ratio | None:
        return _paired(*(self.samples[r.case_id, r.implementation] for r in (other, row)))


@dataclass(frozen=True)
class QueueClock:
    """Bursts of calls one behind the other, paired by their round. Replays of a graph are no calls,
    and calls at once have no bursts."""

    bursts: Mapping[Key, Bursts]

    def rivals(self, valid: Sequence[Row]) -> Sequence[Row]:
        """All: who left its bursts early was hopelessly behind, or is too slow for an interval."""
        return valid

    def median_ms(self, row: Row) -> float | None:
        if row.mode is not Mode.STREAM or row.streams != 1:
            return None
        return row.time_ms(Regime.QUEUE)

    def ratio(self, other: Row, row: Row) -> Ratio | None:
        return _paired(*(self.bursts[r.case_id, r.implementation] for r in (other, row)))


def _paired(a: Samples | Bursts, b: Samples | Bursts) -> Ratio | None:
    times = paired(a.round, a.time_ms, b.round, b.time_ms)
    return ratio_of_medians(*times) if len(times[0]) >= MIN_ROUNDS_EVER else None


def against_alternatives(rows: Sequence[Row], clock: Clock) -> dict[Key, Against]:
    """Of each valid candidate and baseline that has a valid alternative beside it."""
    found: dict[Key, Against] = {}
    for case in by_case(rows).values():
        for row in case:
            if row.role not in (Role.CANDIDATE, Role.BASELINE) or not _valid(row, clock):
                continue
            best = _best(case, row, clock)
            ratio = clock.ratio(best, row) if best else None
            if best is not None and ratio is not None:
                widened = ratio.widened(clock_spread([row.conditions]))
                found[row.case_id, row.implementation] = Against(best.implementation, widened)
    return found


def _best(case: Sequence[Row], beside: Row, clock: Clock) -> Row | None:
    """The fastest alternative that was interleaved with the row."""
    valid = [
        r
        for r in case
        if r.role is Role.ALTERNATIVE and r.session == beside.session and _valid(r, clock)
    ]
    return min(clock.rivals(valid), key=lambda r: clock.median_ms(r) or 0.0, default=None)


def _valid(row: Row, clock: Clock) -> bool:
    return row.status is Status.OK and clock.median_ms(row) is not None

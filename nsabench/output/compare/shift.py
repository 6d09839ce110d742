"""Compares the time and the status of an implementation in two runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from nsabench.checks.finding import Group
from nsabench.model.record import Key, Record
from nsabench.model.vocabulary import (
    BENIGN,
    Change,
    Difference,
    Regime,
    Role,
    Status,
    Verdict,
)
from nsabench.output import grouped
from nsabench.output.compare import band as bands
from nsabench.output.compare.side import Side
from nsabench.verdicts.statistics import (
    MIN_ROUNDS_EVER,
    Arm,
    Ratio,
    ratio_of_independent_arms,
)

NOTHING_LEFT = "less is left of its time than the timer's share is known to"
MISSING = "missing"  # The status of a planned cell that was not measured.


@dataclass(frozen=True)
class Shift:
    """A later run against the first. `difference` is None if both runs declined the case.

    ratio: time in the first run / time in the later one, with its 95 % interval. To cancel the
    hosts, it is divided by the ratio of `beside`, a baseline whose code is the same in both runs.
    alone: the ratio before the division. band: the share up to which times are the same.
    """

    difference: Difference | None
    why: str = ""
    ratio: float | None = None
    lo: float | None = None
    hi: float | None = None
    change: Change | None = None
    doubtful: bool = False
    beside: str = ""
    alone: float | None = None
    band: float | None = None


class Pair:
    """Two runs to compare. least: the narrowest band."""

    def __init__(self, first: Side, later: Side, least: float) -> None:
        self.first, self.later, self._least = first, later, least
        self._bands: dict[tuple[str, Regime, bool], bands.Learned] = {}

    def shifts(self, key: Key, regime: Regime) -> dict[Regime, Shift]:
        """Compare a cell in the regime of its samples, and in the queue if it was timed there."""
        found = {regime: self._compare_samples(key)}
        queued = self._compare_quantiles(key)
        return found if queued is None else found | {Regime.QUEUE: queued}

    def _compare_samples(self, key: Key) -> Shift:
        before, after = self.first.records.get(key), self.later.records.get(key)
        statuses = [record.status if record else MISSING for record in (before, after)]
        change = Change.between(*statuses)
        for side, record in ((self.first, before), (self.later, after)):
            if record is None or record.status is not Status.OK:
                if change is None and statuses[0] in BENIGN:
                    return Shift(None, record.reason if record else "")
                outcome = f"{record.status}: {record.reason}" if record else "not measured"
                return Shift(Difference.INVALID, f"in {side.name} {outcome}", change=change)
        assert before is not None
        assert after is not None
        both = ((self.first, before), (self.later, after))
        for side, record in both:
            why = side.objects_to(Group.of(record))
            if record.verdict is Verdict.INVALID:
                why = why or f"in {side.name} {record.why}"
            if why:
                return Shift(Difference.INVALID, why, change=change)
        if key not in self.first.samples or key not in self.later.samples:
            return Shift(Difference.INCONCLUSIVE, "parity only: it was not timed")
        if self._has_few_samples(key):
            return Shift(Difference.INCONCLUSIVE, "it was called a few times only")
        for side, record in both:
            doubt = side.doubt(record)
            if doubt:
                return Shift(Difference.INCONCLUSIVE, f"in {side.name} {doubt}", doubtful=True)
        return self._compare_times(key, before, after, change)

    def _has_few_samples(self, key: Key) -> bool:
        return any(len(side.samples[key]) < MIN_ROUNDS_EVER for side in (self.first, self.later))

    def _compare_times(
        self, key: Key, before: Record, after: Record, change: Change | None
    ) -> Shift:
        times = _read_times(before, after)
        if times is None:
            return Shift(Difference.INCONCLUSIVE, NOTHING_LEFT, doubtful=True)
        anchor = self._find_anchor(key)
        beside = self._learn_band(before.op, before.regime, beside=True)
        if not beside:
            anchor = None
        try:
            alone = self._estimate_ratio(key)
            ratio = alone if anchor is None else self._estimate_ratio(key, anchor)
        except ValueError:  # nothing is left of a resampled median
            return Shift(Difference.INCONCLUSIVE, NOTHING_LEFT, doubtful=True)
        if anchor is not None:
            width = beside.band(times[0], key)
        elif apart := self._learn_band(before.op, before.regime, beside=False):
            width = apart.band(times[0], key)
        else:  # no baseline teaches one
            width = self._least
            if _are_net(before, after):
                width += bands.SHARE_ERROR_MS * (1 / times[0] + 1 / times[1])
        difference, why = _classify(ratio.lo, ratio.hi, width)
        return Shift(
            difference,
            why,
            ratio.value,
            ratio.lo,
            ratio.hi,
            change,
            beside=anchor[1] if anchor else "",
            alone=alone.value,
            band=width,
        )

    def _compare_quantiles(self, key: Key) -> Shift | None:
        """Compare the medians of queued calls, whose quantiles (20 and 80 %) bound the ratio."""
        before, after = self.first.records.get(key), self.later.records.get(key)
        if before is None or after is None:
            return None
        first, then = before.comparison(Regime.QUEUE), after.comparison(Regime.QUEUE)
        if not (first.median_ms and then.median_ms and then.p20_ms and then.p80_ms):
            return None
        assert first.p20_ms is not None and first.p80_ms is not None
        for side, record in ((self.first, before), (self.later, after)):
            objection = side.objects_to_queue(record)
            if objection:
                return Shift(Difference.INVALID, objection)
        learned = self._learn_band(before.op, Regime.QUEUE, beside=False)
        width = learned.band(first.median_ms, key) if learned else bands.BAND_IN_QUEUE
        lo = first.p20_ms / then.p80_ms
        hi = first.p80_ms / then.p20_ms
        difference, why = _classify(lo, hi, width)
        value = first.median_ms / then.median_ms
        return Shift(difference, why, value, lo, hi, alone=value, band=width)

    @cached_property
    def _unchanged(self) -> dict[Key, Role]:
        """Code that is the same in both runs, with times that can be compared."""
        return {
            key: role
            for key, role in bands.same_code(self.first, self.later).items()
            if self._is_sound(key)
        }

    def _is_sound(self, key: Key) -> bool:
        sides = (self.first, self.later)
        before, after = (side.records[key] for side in sides)
        return (
            _read_times(before, after) is not None
            and all(key in side.samples for side in sides)
            and not self._has_few_samples(key)
            and not any(
                side.doubt(record) or side.objects_to(Group.of(record))
                for side, record in ((self.first, before), (self.later, after))
            )
        )

    @cached_property
    def _anchors(self) -> Mapping[str, list[Key]]:
        """Unchanged code by case: baselines before alternatives, the fastest first."""

        def place(key: Key) -> tuple[bool, float, Key]:
            times = _read_times(self.first.records[key], self.later.records[key])
            assert times is not None
            return self._unchanged[key] is not Role.BASELINE, times[0], key

        return grouped(sorted(self._unchanged, key=place), lambda key: key[0])

    def _find_anchor(self, key: Key) -> Key | None:
        return next((k for k in self._anchors.get(key[0], ()) if k != key), None)

    def _learn_band(self, op: str, regime: Regime, *, beside: bool) -> bands.Learned:
        """Learn the band from the cells of an op, or of all ops if there are few."""
        if (op, regime, beside) not in self._bands:
            least = bands.BAND_IN_QUEUE if regime is Regime.QUEUE else self._least
            of_all = list(self._list_differences(regime, beside))
            of_op = [d for d in of_all if self.first.records[d.key].op == op]
            learned = bands.Learned(of_op, least) or bands.Learned(of_all, least)
            self._bands[op, regime, beside] = learned
        return self._bands[op, regime, beside]

    def _list_differences(self, regime: Regime, beside: bool) -> Iterator[bands.Known]:
        for key in self._unchanged:
            times = self._read_times_in(key, regime)
            anchor = self._find_anchor(key) if beside else None
            others = self._read_times_in(anchor, regime) if anchor else (1.0, 1.0)
            if times is not None and others is not None and (anchor or not beside):
                apart = math.log(times[0] / times[1]) - math.log(others[0] / others[1])
                yield bands.Known(times[0], abs(apart), key)

    def _read_times_in(self, key: Key, regime: Regime) -> tuple[float, float] | None:
        before, after = self.first.records[key], self.later.records[key]
        if regime is before.regime:
            return _read_times(before, after)
        first, later = before.median_in(regime), after.median_in(regime)
        return (first, later) if first and later else None

    def _estimate_ratio(self, key: Key, beside: Key | None = None) -> Ratio:
        above, below = [self._build_arm(self.first, key)], [self._build_arm(self.later, key)]
        if beside is not None:
            above.append(self._build_arm(self.later, beside))
            below.append(self._build_arm(self.first, beside))
        return ratio_of_independent_arms(above, below)

    def _build_arm(self, side: Side, key: Key) -> Arm:
        shares = _are_net(self.first.records[key], self.later.records[key])
        record = side.records[key]
        less = (record.median_ms or 0) - (record.own.net_ms or 0) if shares else 0.0
        # Only the median is surely longer than the timer's share.
        return Arm(side.samples[key], less)


def _are_net(before: Record, after: Record) -> bool:
    return before.own.net_ms is not None and after.own.net_ms is not None


def _read_times(before: Record, after: Record) -> tuple[float, float] | None:
    """Return the times in both runs (ms), without the timer's share if it is known."""
    if _are_net(before, after):
        first, later, least = before.own.net_ms, after.own.net_ms, bands.SHARE_ERROR_MS
    else:
        first, later, least = before.median_ms, after.median_ms, 0.0
    if first is None or later is None or min(first, later) <= least:
        return None
    return first, later


def _classify(lo: float, hi: float, band: float) -> tuple[Difference, str]:
    low, high = 1 / (1 + band), 1 + band
    if lo > high:
        return Difference.FASTER, ""
    if hi < low:
        return Difference.SLOWER, ""
    if lo >= low and hi <= high:
        return Difference.SAME, ""
    return Difference.INCONCLUSIVE, f"the 95 % interval of the ratio is {lo:.3f} to {hi:.3f}"

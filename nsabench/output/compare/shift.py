"""How the time and the status of an implementation differ between two runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from nsabench.assessment.checks.group import Group
from nsabench.assessment.statistics import (
    MIN_ROUNDS_EVER,
    Arm,
    Ratio,
    ratio_of_independent_arms,
)
from nsabench.assessment.verdict import Key
from nsabench.model.record import Record
from nsabench.model.vocabulary import BENIGN, Mode, Role, Status, Verdict
from nsabench.output.compare import band as bands
from nsabench.output.compare.side import Side
from nsabench.output.compare.steady import steady
from nsabench.output.compare.vocabulary import Change, Difference

NOTHING_LEFT = "less is left of its time than the timer's share is known to"
MISSING = "missing"  # in place of a status: planned, and not measured


@dataclass(frozen=True)
class Shift:
    """A later run against the first: ratio = time in the first / time in the later one, with its
    95 % interval, of device times where both are known. `difference` is None where both runs
    declined the case.

    beside: the baseline of the same code in both runs by whose ratio that ratio is divided, so that
    what the host does to both cancels; empty where there is none. alone: the ratio before that.
    band: differences up to this share are none, with this cell's duration.
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
    """Two runs, the later one held against the first. least: the narrowest band."""

    def __init__(self, first: Side, later: Side, least: float) -> None:
        self.first, self.later, self._least = first, later, least
        self._bands: dict[tuple[str, Mode | None, bool], bands.Learned] = {}

    def shift(self, key: Key) -> Shift:
        """Of the samples: of the device, or of graphs where that is the mode."""
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
        for side, record in ((self.first, before), (self.later, after)):
            objection = side.objects_to(Group.of(record))
            if objection or record.verdict is Verdict.INVALID:
                why = objection or f"in {side.name} {record.reason}"
                return Shift(Difference.INVALID, why, change=change)
        if key not in self.first.samples or key not in self.later.samples:
            return Shift(Difference.INCONCLUSIVE, "parity only: it was not timed")
        if self._few(key):
            return Shift(Difference.INCONCLUSIVE, "it was called a few times only")
        for side, record in ((self.first, before), (self.later, after)):
            doubt = side.doubt(record)
            if doubt:
                return Shift(Difference.INCONCLUSIVE, f"in {side.name} {doubt}", doubtful=True)
        return self._of_times(key, before, after, change)

    def _few(self, key: Key) -> bool:
        """Whether it was left out in one of the runs, since it was hopelessly behind."""
        sides = (self.first, self.later)
        return any(len(side.samples[key]) < MIN_ROUNDS_EVER for side in sides)

    def _of_times(self, key: Key, before: Record, after: Record, change: Change | None) -> Shift:
        lasts = _lasts(before, after)
        if lasts is None:
            return Shift(Difference.INCONCLUSIVE, NOTHING_LEFT, doubtful=True)
        anchor = self._anchor(key)
        beside = self._band(before.op, before.mode, beside=True)
        apart = self._band(before.op, before.mode, beside=False)
        try:
            alone = self._ratio(key)
            together = alone if anchor is None else self._ratio(key, anchor)
        except ValueError:  # of a resampled median nothing is left
            return Shift(Difference.INCONCLUSIVE, NOTHING_LEFT, doubtful=True)
        if anchor is not None and beside:
            ratio, width = together, beside.of(lasts[0], key)
        else:
            anchor, ratio = None, alone
            width = (
                apart.of(lasts[0], key)
                if apart
                else bands.untaught(self._least, *lasts, shares=_shares(before, after))
            )
        difference, why = _difference(ratio.lo, ratio.hi, width)
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

    def shift_in_queue(self, key: Key) -> Shift | None:
        """By the medians of the bursts; their 20 and 80 % quantiles, which are all that is kept of
        them in a record, bound the ratio. None where one of the runs has no such time."""
        before, after = self.first.records.get(key), self.later.records.get(key)
        if before is None or after is None:
            return None
        if not (
            before.queued_ms and after.queued_ms and after.queued_p20_ms and after.queued_p80_ms
        ):
            return None
        assert before.queued_p20_ms is not None and before.queued_p80_ms is not None
        for side, record in ((self.first, before), (self.later, after)):
            objection = side.objects_to_queue(record)
            if objection:
                return Shift(Difference.INVALID, objection)
        learned = self._band(before.op, None, beside=False)
        width = learned.of(before.queued_ms, key) if learned else bands.BAND_IN_QUEUE
        lo = before.queued_p20_ms / after.queued_p80_ms
        hi = before.queued_p80_ms / after.queued_p20_ms
        difference, why = _difference(lo, hi, width)
        value = before.queued_ms / after.queued_ms
        return Shift(difference, why, value, lo, hi, alone=value, band=width)

    @cached_property
    def _steady(self) -> Mapping[Key, Role]:
        """What teaches: the same code, timed on both sides, and nothing is said against it."""
        return {
            key: role
            for key, role in steady(self.first, self.later).items()
            if key in self.first.samples
            and key in self.later.samples
            and not self._few(key)
            and not any(
                side.doubt(side.records[key]) or side.objects_to(Group.of(side.records[key]))
                for side in (self.first, self.later)
            )
            and _lasts(self.first.records[key], self.later.records[key]) is not None
        }

    @cached_property
    def _anchors(self) -> Mapping[str, list[tuple[float, Key]]]:
        """By case: what teaches there, baselines before alternatives, the fastest first."""
        cases: dict[str, list[tuple[bool, float, Key]]] = {}
        for key, role in self._steady.items():
            lasts = _lasts(self.first.records[key], self.later.records[key])
            assert lasts is not None
            cases.setdefault(key[0], []).append((role is not Role.BASELINE, lasts[0], key))
        return {case: [(ms, key) for _, ms, key in sorted(all_)] for case, all_ in cases.items()}

    def _anchor(self, key: Key) -> Key | None:
        """The baseline beside which a cell is compared: the fastest that is not the cell."""
        return next((k for _, k in self._anchors.get(key[0], ()) if k != key), None)

    def _band(self, op: str, mode: Mode | None, *, beside: bool) -> bands.Learned:
        """What is learned of the cells of an op in a mode; of calls one behind the other for None.
        Where too few of the op teach, those of all ops do."""
        if (op, mode, beside) not in self._bands:
            least = bands.BAND_IN_QUEUE if mode is None else self._least
            all_ = list(self._in_queue() if mode is None else self._differences(mode, beside))
            of_op = [d for d in all_ if self.first.records[d.key].op == op]
            learned = bands.Learned(of_op, least) or bands.Learned(all_, least)
            self._bands[op, mode, beside] = learned
        return self._bands[op, mode, beside]

    def _differences(self, mode: Mode, beside: bool) -> Iterator[bands.Difference]:
        for key in self._steady:
            before, after = self.first.records[key], self.later.records[key]
            lasts = _lasts(before, after)
            if before.mode is not mode or lasts is None:
                continue
            apart = math.log(lasts[0] / lasts[1])
            if beside:
                anchor = self._anchor(key)
                if anchor is None:
                    continue
                theirs = _lasts(self.first.records[anchor], self.later.records[anchor])
                assert theirs is not None
                apart -= math.log(theirs[0] / theirs[1])
            yield bands.Difference(lasts[0], abs(apart), key)

    def _in_queue(self) -> Iterator[bands.Difference]:
        for key in self._steady:
            before, after = self.first.records[key], self.later.records[key]
            if before.queued_ms and after.queued_ms:
                apart = abs(math.log(before.queued_ms / after.queued_ms))
                yield bands.Difference(before.queued_ms, apart, key)

    def _ratio(self, key: Key, beside: Key | None = None) -> Ratio:
        """Of the medians of a cell, over that of the baseline beside it if there is one."""
        above, below = [self._arm(self.first, key)], [self._arm(self.later, key)]
        if beside is not None:
            above.append(self._arm(self.later, beside))
            below.append(self._arm(self.first, beside))
        return ratio_of_independent_arms(above, below)

    def _arm(self, side: Side, key: Key) -> Arm:
        shares = _shares(self.first.records[key], self.later.records[key])
        record = side.records[key]
        less = (record.median_ms or 0) - (record.device_ms or 0) if shares else 0.0
        # A sample may be shorter than the timer's share is on average; a median is not.
        return Arm(side.samples[key], less)


def _shares(before: Record, after: Record) -> bool:
    """Whether the timer's share is known in both runs, so that device times can be compared."""
    return before.device_ms is not None and after.device_ms is not None


def _lasts(before: Record, after: Record) -> tuple[float, float] | None:
    """The times in both runs, ms: of the device where both are known. None where nothing of one is
    left but what the timer adds."""
    if _shares(before, after):
        first, later, least = before.device_ms, after.device_ms, bands.SHARE_ERROR_MS
    else:
        first, later, least = before.median_ms, after.median_ms, 0.0
    if first is None or later is None or min(first, later) <= least:
        return None
    return first, later


def _difference(lo: float, hi: float, band: float) -> tuple[Difference, str]:
    low, high = 1 / (1 + band), 1 + band
    if lo > high:
        return Difference.FASTER, ""
    if hi < low:
        return Difference.SLOWER, ""
    if lo >= low and hi <= high:
        return Difference.SAME, ""
    return Difference.INCONCLUSIVE, f"the 95 % interval of the ratio is {lo:.3f} to {hi:.3f}"

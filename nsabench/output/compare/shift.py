import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from nsabench.checks.finding import Group
from nsabench.model.plan import ImplementationInfo
from nsabench.model.record import Key
from nsabench.model.vocabulary import BENIGN, Change, Difference, Regime, Role, Status, Verdict
from nsabench.output.compare.side import Side
from nsabench.verdicts.statistics import MIN_ROUNDS_EVER, ratio_of_independent_medians

NOTHING_LEFT = "without the timer's share, its time is shorter than the error of that share"
MISSING = "missing"  # the status of a planned cell that was not measured

# Medians of the same code rarely differ by more (docs/explanation/measurement.md, "How well it
# measures").
BAND = 0.05
# In the regime queue, times depend on the host, and hosts differ by more than devices.
BAND_IN_QUEUE = 0.10
# A band covers this fraction of the differences between times of the same code.
COVERED = 0.98
FEWEST = 50  # with fewer differences, a band is not widened
# The error (ms) of what the timer adds: on the GPUs of one host, it adds 4.3 to 4.5 µs.
SHARE_ERROR_MS = 0.0002
# If one of these differs, no code counts as unchanged.
ALIKE = ("device", "torch", "CUDA")
SHIPPED = "nsabench"


@dataclass(frozen=True)
class Shift:
    """An implementation on a case in a later run, compared with the first run.

    `difference` is None if both runs declined the case. `ratio` is the first time over the later
    time, with its 95 % interval. Times within `band`, a fraction of the time, are the same.
    """

    difference: Difference | None
    why: str = ""
    ratio: float | None = None
    lo: float | None = None
    hi: float | None = None
    change: Change | None = None
    doubtful: bool = False
    band: float | None = None


class RunPair:
    """Two runs to compare. `least` is the narrowest band within which times count as the same."""

    def __init__(self, first: Side, later: Side, least: float) -> None:
        self.first, self.later, self._least = first, later, least
        self._bands: dict[Regime, float] = {}

    def shifts(self, key: Key, regime: Regime) -> dict[Regime, Shift]:
        found = {regime: self._refuse(key) or self._compare_samples(key)}
        queued = self._compare_quantiles(key)
        return found if queued is None else found | {Regime.QUEUE: queued}

    def _refuse(self, key: Key) -> Shift | None:
        records = [(side, side.records.get(key)) for side in (self.first, self.later)]
        statuses = [record.status if record else MISSING for _, record in records]
        change = Change.between(*statuses)
        for side, record in records:
            if record is None or record.status is not Status.OK:
                if change is None and statuses[0] in BENIGN:
                    return Shift(None, record.reason if record else "")
                outcome = f"{record.status}: {record.reason}" if record else "not measured"
                return Shift(Difference.INVALID, f"in {side.name} {outcome}", change=change)
        measured = [(side, record) for side, record in records if record is not None]
        for side, record in measured:
            why = side.objects_to(Group.from_record(record))
            if record.verdict is Verdict.INVALID:
                why = why or f"in {side.name} {record.why}"
            if why:
                return Shift(Difference.INVALID, why)
        if not all(key in side.samples for side, _ in measured):
            return Shift(Difference.INCONCLUSIVE, "parity only: it was not timed")
        if any(len(side.samples[key]) < MIN_ROUNDS_EVER for side, _ in measured):
            return Shift(Difference.INCONCLUSIVE, "it was called a few times only")
        for side, record in measured:
            doubt = side.doubt(record)
            if doubt:
                return Shift(Difference.INCONCLUSIVE, f"in {side.name} {doubt}", doubtful=True)
        if self._read_times(key) is None:
            return Shift(Difference.INCONCLUSIVE, NOTHING_LEFT, doubtful=True)
        return None

    def _compare_samples(self, key: Key) -> Shift:
        times = self._read_times(key)
        assert times is not None
        try:
            ratio = ratio_of_independent_medians(
                self.first.samples[key],
                self.later.samples[key],
                (self._read_timer_share(self.first, key), self._read_timer_share(self.later, key)),
            )
        except ValueError:  # nothing is left of a resampled median
            return Shift(Difference.INCONCLUSIVE, NOTHING_LEFT, doubtful=True)
        band = self._learn_band(self.first.records[key].regime)
        if self._is_net(key):
            band += SHARE_ERROR_MS * (1 / times[0] + 1 / times[1])
        return _classify(ratio.value, ratio.lo, ratio.hi, band)

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
        lo = first.p20_ms / then.p80_ms
        hi = first.p80_ms / then.p20_ms
        band = self._learn_band(Regime.QUEUE)
        return _classify(first.median_ms / then.median_ms, lo, hi, band)

    def _learn_band(self, regime: Regime) -> float:
        """Return a regime's band, widened to cover `COVERED` of differences of unchanged code."""
        if regime not in self._bands:
            least = BAND_IN_QUEUE if regime is Regime.QUEUE else self._least
            differences = [
                abs(math.log(times[0] / times[1]))
                for key in self._unchanged
                if (times := self._read_times(key, regime)) is not None
            ]
            if len(differences) >= FEWEST:
                least = max(least, math.expm1(float(np.quantile(differences, COVERED))))
            self._bands[regime] = least
        return self._bands[regime]

    @cached_property
    def _unchanged(self) -> Sequence[Key]:
        """Baselines and alternatives whose code and software are equal in both runs."""
        first, later = self.first, self.later
        if any(first.versions.get(name) != later.versions.get(name) for name in ALIKE):
            return []
        same_triton = first.versions.get("triton") == later.versions.get("triton")
        theirs = {(i.op, i.name): i for i in later.plan.implementations}
        same = {
            (i.op, i.name)
            for i in first.plan.implementations
            if (other := theirs.get((i.op, i.name))) is not None
            and i.role in (Role.BASELINE, Role.ALTERNATIVE)
            and i.origin == other.origin
            and (digest := first.plan.sources.get(i.source)) is not None
            and digest == later.plan.sources.get(other.source)
            and (same_triton or (_needs_no_triton(i) and _needs_no_triton(other)))
        }
        return [
            key
            for key, record in first.records.items()
            if (record.op, record.implementation) in same and self._refuse(key) is None
        ]

    def _read_times(self, key: Key, regime: Regime | None = None) -> tuple[float, float] | None:
        """Return the times in both runs (ms), without what the timer adds if that is known."""
        before, after = self.first.records[key], self.later.records[key]
        least = 0.0
        if regime not in (None, before.regime):
            first, later = before.median_in(regime), after.median_in(regime)
        elif self._is_net(key):
            first, later, least = before.own.net_ms, after.own.net_ms, SHARE_ERROR_MS
        else:
            first, later = before.median_ms, after.median_ms
        if first is None or later is None or min(first, later) <= least:
            return None
        return first, later

    def _is_net(self, key: Key) -> bool:
        return all(side.records[key].own.net_ms is not None for side in (self.first, self.later))

    def _read_timer_share(self, side: Side, key: Key) -> float:
        record = side.records[key]
        return (record.median_ms or 0) - (record.own.net_ms or 0) if self._is_net(key) else 0.0


def _needs_no_triton(info: ImplementationInfo) -> bool:
    return info.source == SHIPPED and info.compiled_by == ""


def _classify(ratio: float, lo: float, hi: float, band: float) -> Shift:
    low, high = 1 / (1 + band), 1 + band
    why = ""
    if lo > high:
        difference = Difference.FASTER
    elif hi < low:
        difference = Difference.SLOWER
    elif lo >= low and hi <= high:
        difference = Difference.SAME
    else:
        difference = Difference.INCONCLUSIVE
        why = f"the 95 % interval of the ratio is {lo:.3f} to {hi:.3f}"
    return Shift(difference, why, ratio, lo, hi, band=band)

"""From runs to a comparison: the object that every renderer shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property

from nsabench.assessment import labels
from nsabench.assessment.caution import beside
from nsabench.assessment.statistics import geometric_mean
from nsabench.errors import UsageError
from nsabench.model.case import Case
from nsabench.model.plan import PlannedCase
from nsabench.model.record import Record
from nsabench.model.vocabulary import Role
from nsabench.output.compare import payments
from nsabench.output.compare.band import BAND, BAND_IN_QUEUE
from nsabench.output.compare.payments import ComparedPayment, PaymentShift
from nsabench.output.compare.shift import MISSING, Pair, Shift
from nsabench.output.compare.side import Side, compared
from nsabench.output.compare.vocabulary import Change, Difference


@dataclass(frozen=True)
class Measurement:
    """An implementation on a case in one run. Times in ms; the speed-up is that run's own, against
    its best baseline, with its 95 % interval."""

    status: str
    reason: str = ""
    median_ms: float | None = None
    best_baseline: str = ""
    speedup: float | None = None
    speedup_lo: float | None = None
    speedup_hi: float | None = None
    verdict: str | None = None
    regime: str = ""  # that these are of
    caution: str = ""  # what to bear in mind beside speed-up and verdict


@dataclass(frozen=True)
class ComparedCell:
    """An implementation on a case: `measurements`, one a run; `shifts`, one a later run."""

    planned: PlannedCase
    implementation: str
    role: Role
    length: int | None
    measurements: tuple[Measurement, ...]
    shifts: tuple[Shift, ...]
    in_queue: tuple[Shift | None, ...] = ()  # None: one of the two runs has no such time

    @property
    def case(self) -> Case:
        return self.planned.case

    @property
    def label(self) -> str:
        """The case on one line."""
        return labels.of_case(self.case)

    @property
    def name(self) -> str:
        return f"{self.implementation} on {self.label}"


@dataclass(frozen=True)
class Mean:
    """An implementation in a later run. `value`: geometric mean of the ratios of `valid` cells."""

    op: str
    implementation: str
    role: Role
    value: float | None
    valid: int
    invalid: int
    differences: dict[Difference, int]


@dataclass(frozen=True)
class Comparison:
    """Runs, and every cell they have in common. `disagreements`: how their plans differ, a
    sentence each; what they do not share was left out."""

    sides: tuple[Side, ...]
    cells: tuple[ComparedCell, ...]
    disagreements: tuple[str, ...]
    band: float
    payments: tuple[ComparedPayment, ...] = ()

    @property
    def first(self) -> Side:
        return self.sides[0]

    @property
    def later(self) -> tuple[Side, ...]:
        return self.sides[1:]

    @cached_property
    def differing(self) -> dict[str, list[str]]:
        """Versions that are not the same in all runs: name -> value in each, "" where unknown."""
        names = dict.fromkeys(name for side in self.sides for name in side.versions)
        values = {name: [side.versions.get(name, "") for side in self.sides] for name in names}
        return {name: row for name, row in values.items() if len(set(row)) > 1}

    def changes(self, later: int) -> list[tuple[ComparedCell, Shift]]:
        """Cells whose status in the later run of that index is another, the worst first."""
        order = list(Change)
        changed = [(c, c.shifts[later]) for c in self.cells if c.shifts[later].change is not None]
        return sorted(changed, key=lambda pair: order.index(pair[1].change or Change.OTHER))

    def means(self, later: int) -> list[Mean]:
        """One a implementation, in the order of the plan."""
        groups: dict[tuple[str, str], list[ComparedCell]] = {}
        for cell in self.cells:
            groups.setdefault((cell.case.op, cell.implementation), []).append(cell)
        return [_mean(op, name, cells, later) for (op, name), cells in groups.items()]

    def broken(self, later: int) -> list[tuple[ComparedCell, Shift]]:
        """Status changes for the worse, and what is planned but was not measured."""
        return [pair for pair in self.changes(later) if pair[1].change is Change.BROKE]

    def slower(self, later: int) -> list[tuple[ComparedCell, Shift]]:
        """Candidates that lost time by more than the band; all implementations if none is one."""
        pairs = [(c, c.shifts[later]) for c in self._judged()]
        return [pair for pair in pairs if pair[1].difference is Difference.SLOWER]

    def slower_in_queue(self, later: int) -> list[tuple[ComparedCell, Shift]]:
        """The same of calls one behind the other, by its own band."""
        pairs = [(c, c.in_queue[later]) for c in self._judged()]
        return [(c, s) for c, s in pairs if s is not None and s.difference is Difference.SLOWER]

    def _judged(self) -> Sequence[ComparedCell]:
        """What a gate is for: candidates; all implementations if none is one."""
        return [c for c in self.cells if c.role is Role.CANDIDATE] or self.cells

    def doubtful(self, later: int) -> list[tuple[ComparedCell, Shift]]:
        """Of those whom a gate is for, the ones whose times decide nothing."""
        pairs = [(c, c.shifts[later]) for c in self._judged()]
        return [pair for pair in pairs if pair[1].doubtful]

    def undecided(self, later: int) -> str:
        """Why no time of those whom a gate is for could be compared at all; empty where some
        could."""
        doubtful = self.doubtful(later)
        if not doubtful or any(c.shifts[later].ratio is not None for c in self._judged()):
            return ""
        return f"no time in {self.later[later].name} could be compared: {doubtful[0][1].why}"

    def pays_otherwise(self, later: int) -> list[tuple[ComparedPayment, PaymentShift]]:
        """Ops that pay from another length on than in the first run, the worst first."""
        order = list(Change)
        changed = [(p, p.shifts[later]) for p in self.payments if p.shifts[later].change]
        return sorted(changed, key=lambda pair: order.index(pair[1].change or Change.OTHER))

    def pays_less(self, later: int) -> list[tuple[ComparedPayment, PaymentShift]]:
        """Those that pay later, or no more, by more than two runs of the same code differ."""
        return [pair for pair in self.pays_otherwise(later) if pair[1].change is Change.BROKE]

    def failures(self, *, slower: bool) -> Iterator[str]:
        """Why a gate stays shut, a sentence each: what broke, and, if asked for, what got slower.
        Of times that decide nothing nothing can be said: a run that is invalid is one as well then,
        and so is one of which no time is left. Where some are, those are what is gone by."""
        yield from (side.objection for side in self.sides if side.objection and slower)
        for later, side in enumerate(self.later):
            for cell, _ in self.broken(later):
                before, after = cell.measurements[0], cell.measurements[later + 1]
                yield f"{cell.name} in {side.name}: {before.status} became {after.status}"
            if slower and self.undecided(later):
                yield self.undecided(later)
            for cell, shift in self.slower(later) if slower else ():
                yield f"{cell.name} in {side.name}: {shift.ratio:.3f} of the speed"
            for cell, shift in self.slower_in_queue(later) if slower else ():
                yield f"{cell.name} in {side.name}, in the queue: {shift.ratio:.3f} of the speed"
            for paid, told in self.pays_less(later) if slower else ():
                yield (
                    f"{paid.name} in {side.name}: {paid.said(later + 1)}, and before: "
                    f"{paid.said(0)}; {told.why}"
                )


def compare(
    sides: Sequence[Side],
    *,
    intersection: bool = False,
    only: Sequence[str] = ("*",),
    band: float = BAND,
) -> Comparison:
    """Hold every later run against the first. `only`: patterns of implementations.

    Raises `UsageError` when the plans differ and `intersection` is not set, and when the runs have
    nothing in common.
    """
    disagreements = tuple(_disagreements(sides))
    if disagreements and not intersection:
        raise UsageError(
            f"these runs have different plans: {'; '.join(disagreements)}",
            "compare what they have in common with --intersection.",
        )
    cells = tuple(_cells(sides, only, band))
    if not cells:
        raise UsageError(
            "these runs have nothing in common",
            "run the same matrices, or name other implementations with --only.",
        )
    paying = tuple(payments.compared(sides, band, BAND_IN_QUEUE))
    return Comparison(tuple(sides), cells, disagreements, band, paying)


def _disagreements(sides: Sequence[Side]) -> Iterator[str]:
    first = sides[0]
    ours = first.plan.by_id
    for side in sides[1:]:
        cases = side.plan.by_id
        for one, other, name in ((ours, cases, first.name), (cases, ours, side.name)):
            alone = [one[i] for i in one if i not in other]
            if alone:
                example = labels.of_case(alone[0].case)
                yield f"{len(alone)} cases are only in {name}, such as {example}"
        shared = [i for i in ours if i in cases]
        for what in ("seed", "tolerances", "timing"):
            differing = [i for i in shared if _settings(ours[i])[what] != _settings(cases[i])[what]]
            if differing:
                yield f"{len(differing)} cases have another {what} in {side.name}"
        own_keys, other_keys = set(compared(first)), set(compared(side))
        for alone_in, name in (
            (own_keys - other_keys, first.name),
            (other_keys - own_keys, side.name),
        ):
            counts = Counter(who for case_id, who in alone_in if case_id in set(shared))
            for who, count in sorted(counts.items()):
                yield f"{who} is measured only in {name} ({count} cases)"


def _settings(planned: PlannedCase) -> dict[str, object]:
    """What makes two measurements of one case different ones. How long is sampled does not."""
    case = planned.case
    return {
        "seed": case.seed,
        "tolerances": case.tolerances,
        "timing": case.timing.rotate,
    }


def _cells(sides: Sequence[Side], only: Sequence[str], band: float) -> Iterator[ComparedCell]:
    common = [compared(side) for side in sides]
    pairs = [Pair(sides[0], later, band) for later in sides[1:]]
    for (case_id, name), role in common[0].items():
        if not all((case_id, name) in other for other in common):
            continue
        planned = [side.plan.by_id[case_id] for side in sides]
        if any(_settings(p) != _settings(planned[0]) for p in planned):
            continue
        if not any(fnmatchcase(name, pattern) for pattern in only):
            continue
        key = (case_id, name)
        records = [side.records.get(key) for side in sides]
        shifts = tuple(pair.shift(key) for pair in pairs)
        in_queue = tuple(pair.shift_in_queue(key) for pair in pairs)
        length = next((r.length for r in records if r), None)
        yield ComparedCell(
            planned[0], name, role, length, tuple(map(_measurement, records)), shifts, in_queue
        )


def _measurement(record: Record | None) -> Measurement:
    if record is None:
        return Measurement(MISSING, "it was planned and not measured")
    return Measurement(
        record.status,
        record.reason,
        record.median_ms,
        record.best_baseline,
        record.speedup,
        record.speedup_lo,
        record.speedup_hi,
        record.verdict,
        record.regime.value,
        beside(record, record.regime),
    )


def _mean(op: str, name: str, cells: Sequence[ComparedCell], later: int) -> Mean:
    shifts = [cell.shifts[later] for cell in cells]
    ratios = [shift.ratio for shift in shifts if shift.ratio is not None]
    counts = Counter(shift.difference for shift in shifts)
    differences = {d: counts[d] for d in Difference}
    return Mean(
        op,
        name,
        cells[0].role,
        geometric_mean(ratios),
        len(ratios),
        differences[Difference.INVALID],
        differences,
    )

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from nsabench import labels
from nsabench.errors import UsageError
from nsabench.model.case import Case
from nsabench.model.plan import PlannedCase
from nsabench.model.record import Record
from nsabench.model.vocabulary import Change, Difference, Regime, Role
from nsabench.output.compare.shift import BAND, MISSING, RunPair, Shift
from nsabench.output.compare.side import Side


@dataclass(frozen=True)
class ComparedCell:
    """An implementation on a case: a record of each run, and each later run's `Shift` by regime."""

    planned: PlannedCase
    implementation: str
    role: Role
    records: tuple[Record | None, ...]
    by_regime: tuple[Mapping[Regime, Shift], ...]

    @property
    def shifts(self) -> list[Shift]:
        regime = Regime.from_mode(self.case.timing.mode)
        return [shifts[regime] for shifts in self.by_regime]

    @property
    def case(self) -> Case:
        return self.planned.case

    @property
    def name(self) -> str:
        return f"{self.implementation} on {labels.case_with_op(self.case)}"

    def status(self, run: int) -> str:
        record = self.records[run]
        return record.status if record else MISSING


@dataclass(frozen=True)
class RunComparison:
    """Runs and the cells that they share. `disagreements` says how the plans of the runs differ."""

    sides: tuple[Side, ...]
    cells: tuple[ComparedCell, ...]
    disagreements: tuple[str, ...]
    band: float

    @property
    def first(self) -> Side:
        return self.sides[0]

    @property
    def later(self) -> tuple[Side, ...]:
        return self.sides[1:]

    @cached_property
    def candidates(self) -> list[ComparedCell]:
        return [cell for cell in self.cells if cell.role is Role.CANDIDATE]

    @property
    def judged(self) -> Sequence[ComparedCell]:
        return self.candidates or self.cells

    @cached_property
    def differing(self) -> dict[str, list[str]]:
        names = dict.fromkeys(name for side in self.sides for name in side.versions)
        values = {name: [side.versions.get(name, "") for side in self.sides] for name in names}
        return {name: row for name, row in values.items() if len(set(row)) > 1}

    def changes(self, later: int) -> list[tuple[ComparedCell, Shift]]:
        """Return the cells whose status changed, in the order of `Change`: broken cells first."""
        pairs = ((cell, cell.shifts[later]) for cell in self.cells)
        order = list(Change)
        changed = [pair for pair in pairs if pair[1].change]
        return sorted(changed, key=lambda pair: order.index(pair[1].change or Change.OTHER))

    def slower(self, later: int) -> list[tuple[ComparedCell, Regime, Shift]]:
        """Return the slower cells, the worst first. Cells of the regime queue come last."""
        lost = [
            (cell, regime, shift)
            for cell in self.judged
            for regime, shift in cell.by_regime[later].items()
            if shift.difference is Difference.SLOWER
        ]
        return sorted(lost, key=lambda item: (item[1] is Regime.QUEUE, item[2].ratio or 0))

    def doubtful(self, later: int) -> list[tuple[ComparedCell, Shift]]:
        pairs = [(cell, cell.shifts[later]) for cell in self.judged]
        return [pair for pair in pairs if pair[1].doubtful]

    def failures(self, *, slower: bool) -> Iterator[str]:
        """Yield what got worse; if `slower`, also slower times, and why no time can be compared."""
        if slower:
            yield from (side.objection for side in self.sides if side.objection)
        for place, side in enumerate(self.later):
            doubtful = self.doubtful(place)
            if slower and doubtful and all(c.shifts[place].ratio is None for c in self.judged):
                yield f"no time in {side.name} could be compared: {doubtful[0][1].why}"
            for cell, shift in self.changes(place):
                if shift.change is Change.BROKE:
                    statuses = f"{cell.status(0)} became {cell.status(place + 1)}"
                    yield f"{cell.name} in {side.name}: {statuses}"
            for cell, regime, shift in self.slower(place) if slower else ():
                speed = f"{shift.ratio:.3f} of the speed of {self.first.name}"
                yield f"{cell.name} in {side.name} ({regime}): {speed}"


def compare(
    sides: Sequence[Side], *, intersection: bool = False, band: float = BAND
) -> RunComparison:
    """Compare later runs with the first. Raises `UsageError` for runs that cannot be compared."""
    disagreements = tuple(_list_disagreements(sides))
    if disagreements and not intersection:
        raise UsageError(
            f"these runs have different plans: {'; '.join(disagreements)}",
            "compare what they have in common with --intersection.",
        )
    cells = tuple(_compare_cells(sides, band))
    if not cells:
        raise UsageError("these runs have nothing in common", "run the same matrices.")
    return RunComparison(tuple(sides), cells, disagreements, band)


def _list_disagreements(sides: Sequence[Side]) -> Iterator[str]:
    first = sides[0]
    ours = first.plan.by_id
    for side in sides[1:]:
        theirs = side.plan.by_id
        for cases, others, name in ((ours, theirs, first.name), (theirs, ours, side.name)):
            alone = [cases[i] for i in cases if i not in others]
            if alone:
                example = labels.case_with_op(alone[0].case)
                yield f"{len(alone)} cases are only in {name}, such as {example}"
        shared = [i for i in ours if i in theirs]
        for what in ("seed", "tolerances", "timing"):
            differing = sum(
                _read_settings(ours[i])[what] != _read_settings(theirs[i])[what] for i in shared
            )
            if differing:
                yield f"{differing} cases have another {what} in {side.name}"
        own_keys, their_keys = set(first.roles), set(side.roles)
        for keys, name in ((own_keys - their_keys, first.name), (their_keys - own_keys, side.name)):
            counts = Counter(who for case_id, who in keys if case_id in set(shared))
            for who, count in sorted(counts.items()):
                yield f"{who} is measured only in {name} ({count} cases)"


def _read_settings(planned: PlannedCase) -> dict[str, object]:
    case = planned.case
    return {"seed": case.seed, "tolerances": case.tolerances, "timing": case.timing.rotate}


def _compare_cells(sides: Sequence[Side], band: float) -> Iterator[ComparedCell]:
    pairs = [RunPair(sides[0], later, band) for later in sides[1:]]
    for key, role in sides[0].roles.items():
        case_id, name = key
        if not all(key in side.roles for side in sides):
            continue
        planned = [side.plan.by_id[case_id] for side in sides]
        if any(_read_settings(p) != _read_settings(planned[0]) for p in planned):
            continue
        regime = Regime.from_mode(planned[0].case.timing.mode)
        yield ComparedCell(
            planned[0],
            name,
            role,
            records=tuple(side.records.get(key) for side in sides),
            by_regime=tuple(pair.shifts(key, regime) for pair in pairs),
        )

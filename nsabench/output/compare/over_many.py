"""Many runs at a glance: each case in each run, and the run in which it first got worse."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nsabench.model.vocabulary import Status
from nsabench.output import grouped
from nsabench.output.compare.comparison import ComparedCell, Comparison
from nsabench.output.compare.shift import MISSING
from nsabench.output.compare.vocabulary import Change, Difference

SIGNS = {
    Difference.FASTER: "▲",
    Difference.SLOWER: "▼",
    Difference.SAME: "=",
    Difference.INCONCLUSIVE: "?",
    Difference.INVALID: "✕",
}
MEANS = (
    "The first run, and each later one held against it: ▲ faster, ▼ slower, = the same, "
    "? inconclusive, and by how much (time there / time here); ✕ without a ratio; else the status."
)


@dataclass(frozen=True)
class Worse:
    """The first run in which a cell is worse than in the first of all. change: None if slower.
    stays: whether it is worse in all later runs of which something is known."""

    run: int
    change: Change | None
    stays: bool


@dataclass(frozen=True)
class Line:
    """A cell over all runs."""

    cell: ComparedCell
    texts: tuple[str, ...]
    worse: tuple[Worse, ...]

    @property
    def differs(self) -> bool:
        """Whether anything except noise is to be seen in it."""
        return any(
            s.change is not None or s.difference in (Difference.FASTER, Difference.SLOWER)
            for s in self.cell.shifts
        )


def lines(comparison: Comparison) -> list[Line]:
    """Return a line for each judged cell: broken ones first, then slower ones."""

    def place(line: Line) -> tuple[bool, bool, bool]:
        changes = {worse.change for worse in line.worse}
        return Change.BROKE not in changes, None not in changes, not line.differs

    found = (Line(cell, tuple(_texts(cell)), tuple(_worse(cell))) for cell in comparison.judged)
    return sorted(found, key=place)


def _texts(cell: ComparedCell) -> Iterator[str]:
    first = cell.measurements[0]
    timed = first.status == Status.OK and first.median_ms is not None
    yield f"{first.median_ms:.4g} ms" if timed else first.status
    for shift, measured in zip(cell.shifts, cell.measurements[1:], strict=True):
        if measured.status != Status.OK or shift.difference is None:
            yield measured.status
        else:
            sign = SIGNS[shift.difference]
            yield sign if shift.ratio is None else f"{sign} {shift.ratio:.3f}"


def _worse(cell: ComparedCell) -> Iterator[Worse]:
    before = cell.measurements[0].status
    broken = {
        run: Change.between(before, measured.status) is Change.BROKE
        for run, measured in enumerate(cell.measurements)
        if run and measured.status != MISSING
    }
    slower = {
        run: shift.difference is Difference.SLOWER
        for run, shift in enumerate(cell.shifts, 1)
        if shift.ratio is not None
    }
    for known, change in ((broken, Change.BROKE), (slower, None)):
        first = next((run for run, is_worse in known.items() if is_worse), None)
        if first is not None:
            stays = all(is_worse for run, is_worse in known.items() if run >= first)
            yield Worse(first, change, stays)


@dataclass(frozen=True)
class Breakage:
    """Cells of an implementation that first broke in a run, or first got slower there."""

    op: str
    implementation: str
    run: str
    change: Change | None
    statuses: tuple[str, ...]
    cells: tuple[ComparedCell, ...]
    stay: bool

    @property
    def sentence(self) -> str:
        what = f"broke in {self.run}" if self.change else f"got slower in {self.run}"
        why = f" ({', '.join(self.statuses)})" if self.statuses else ""
        how = "and stays so" if self.stay else "and not in all later ones"
        number = f"{len(self.cells)} cell{'s' if len(self.cells) > 1 else ''}"
        return f"{self.implementation} of {self.op} {what}: {number}{why}, {how}"


def breakages(comparison: Comparison) -> list[Breakage]:
    """Return, by implementation, the first run in which cells got worse; broken ones come first."""
    pairs = [(line.cell, worse) for line in lines(comparison) for worse in line.worse]
    groups = grouped(
        pairs, lambda pair: (pair[0].case.op, pair[0].implementation, pair[1].run, pair[1].change)
    )
    found = []
    for (op, name, run, change), members in groups.items():
        cells = tuple(cell for cell, _ in members)
        statuses = sorted({cell.measurements[run].status for cell in cells}) if change else ()
        stay = all(worse.stays for _, worse in members)
        where = comparison.sides[run].name
        found.append(Breakage(op, name, where, change, tuple(statuses), cells, stay))
    return found

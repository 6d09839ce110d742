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


def in_each_run(cell: ComparedCell) -> Iterator[str]:
    """Yield the status or time of the first run, and the difference of each later one."""
    first = cell.measurements[0]
    timed = first.status == Status.OK and first.median_ms is not None
    yield f"{first.median_ms:.4g} ms" if timed else first.status
    for shift, measured in zip(cell.shifts, cell.measurements[1:], strict=True):
        if measured.status != Status.OK or shift.difference is None:
            yield measured.status
        else:
            sign = SIGNS[shift.difference]
            yield sign if shift.ratio is None else f"{sign} {shift.ratio:.3f}"


def differs(cell: ComparedCell) -> bool:
    """Whether a later run shows anything except noise."""
    return any(
        s.change is not None or s.difference in (Difference.FASTER, Difference.SLOWER)
        for s in cell.shifts
    )


@dataclass(frozen=True)
class Breakage:
    """Cells of an implementation that first broke in a run, or first got slower there."""

    op: str
    implementation: str
    run: str
    change: Change | None
    statuses: tuple[str, ...]
    cells: tuple[ComparedCell, ...]

    @property
    def sentence(self) -> str:
        what = f"broke in {self.run}" if self.change else f"got slower in {self.run}"
        why = f" ({', '.join(self.statuses)})" if self.statuses else ""
        number = f"{len(self.cells)} cell{'s' if len(self.cells) > 1 else ''}"
        return f"{self.implementation} of {self.op} {what}: {number}{why}"


def breakages(comparison: Comparison) -> list[Breakage]:
    """Return, by implementation, the first run in which cells got worse; broken ones come first."""
    worse = [(cell, *first) for cell in comparison.judged for first in _first_worse(cell)]
    worse.sort(key=lambda item: item[2] is None)
    groups = grouped(worse, lambda item: (item[0].case.op, item[0].implementation, *item[1:]))
    found = []
    for (op, name, run, change), members in groups.items():
        cells = tuple(member[0] for member in members)
        statuses = sorted({cell.measurements[run].status for cell in cells}) if change else ()
        where = comparison.sides[run].name
        found.append(Breakage(op, name, where, change, tuple(statuses), cells))
    return found


def _first_worse(cell: ComparedCell) -> Iterator[tuple[int, Change | None]]:
    """Yield the first run in which the cell broke, and the first in which it was slower."""
    runs = list(enumerate(cell.shifts, 1))
    broken = [
        run
        for run, shift in runs
        if shift.change is Change.BROKE and cell.measurements[run].status != MISSING
    ]
    slower = [run for run, shift in runs if shift.difference is Difference.SLOWER]
    if broken:
        yield broken[0], Change.BROKE
    if slower:
        yield slower[0], None

"""Many runs at a glance: what became of each case in each of them, and where it first got worse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nsabench.model.vocabulary import Role, Status
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
class First:
    """The first run, in the order given, in which a cell is worse than in the first of all.

    run: its place; change: `broke`, or None where it is slower. stays: it is so in all later ones
    of which something is known.
    """

    run: int
    change: Change | None
    stays: bool


@dataclass(frozen=True)
class Line:
    """A cell over all runs. texts: one a run."""

    cell: ComparedCell
    texts: tuple[str, ...]
    broke: First | None
    slower: First | None

    @property
    def differs(self) -> bool:
        """Whether anything but noise is to be seen on it."""
        return any(
            s.change is not None or s.difference in (Difference.FASTER, Difference.SLOWER)
            for s in self.cell.shifts
        )


def lines(comparison: Comparison) -> list[Line]:
    """One for each candidate's cell, or for all where there is no candidate; broken ones first,
    then slower ones, each in the order of the plan."""
    cells = [c for c in comparison.cells if c.role is Role.CANDIDATE] or comparison.cells
    found = [_line(cell) for cell in cells]
    return sorted(found, key=lambda one: (one.broke is None, one.slower is None, not one.differs))


def _line(cell: ComparedCell) -> Line:
    first = cell.measurements[0]
    beginning = first.status
    if first.status == Status.OK and first.median_ms is not None:
        beginning = f"{first.median_ms:.4g} ms"
    texts = (beginning, *(_text(cell, later) for later in range(len(cell.shifts))))
    broken = [_is_broken(first.status, m.status) for m in cell.measurements[1:]]
    slow = [s.difference is Difference.SLOWER for s in cell.shifts]
    told = [s.ratio is not None for s in cell.shifts]
    return Line(
        cell,
        texts,
        _first(broken, [m.status != MISSING for m in cell.measurements[1:]], Change.BROKE),
        _first(slow, told, None),
    )


def _is_broken(before: str, after: str) -> bool:
    return after != MISSING and Change.between(before, after) is Change.BROKE


def _first(worse: Sequence[bool], known: Sequence[bool], change: Change | None) -> First | None:
    if not any(worse):
        return None
    place = worse.index(True)
    stays = all(w for w, k in zip(worse[place:], known[place:], strict=True) if k)
    return First(place + 1, change, stays)


def _text(cell: ComparedCell, later: int) -> str:
    shift, measured = cell.shifts[later], cell.measurements[later + 1]
    if measured.status != Status.OK or shift.difference is None:
        return measured.status
    sign = SIGNS[shift.difference]
    return sign if shift.ratio is None else f"{sign} {shift.ratio:.3f}"


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
        """`rows_group broke in triton-3.9.0: 4 cells (compile_error), and stays so`."""
        what = f"broke in {self.run}" if self.change else f"got slower in {self.run}"
        why = f" ({', '.join(self.statuses)})" if self.statuses else ""
        how = "and stays so" if self.stay else "and not in all later ones"
        number = f"{len(self.cells)} cell{'s' if len(self.cells) > 1 else ''}"
        return f"{self.implementation} of {self.op} {what}: {number}{why}, {how}"


def breakages(comparison: Comparison) -> list[Breakage]:
    """By implementation, the first run in which something got worse; what broke comes first."""
    groups: dict[tuple[str, str, int, Change | None], list[tuple[ComparedCell, First]]] = {}
    for line in lines(comparison):
        for first in (line.broke, line.slower):
            if first is not None:
                key = (line.cell.case.op, line.cell.implementation, first.run, first.change)
                groups.setdefault(key, []).append((line.cell, first))
    return [
        Breakage(
            op,
            name,
            comparison.sides[run].name,
            change,
            _statuses(cells, run) if change else (),
            tuple(cell for cell, _ in cells),
            all(first.stays for _, first in cells),
        )
        for (op, name, run, change), cells in groups.items()
    ]


def _statuses(cells: Sequence[tuple[ComparedCell, First]], run: int) -> tuple[str, ...]:
    return tuple(sorted({cell.measurements[run].status for cell, _ in cells}))

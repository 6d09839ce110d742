"""The tables of a comparison."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nsabench.model.record import Record
from nsabench.model.vocabulary import Difference, Status, Verdict
from nsabench.output import grouped
from nsabench.output.compare.comparison import ComparedCell, Comparison, Mean
from nsabench.output.compare.payments import PaymentShift
from nsabench.output.compare.shift import MISSING, Shift
from nsabench.output.document import Name, Ours, Table, Tag, number
from nsabench.verdicts.caution import beside, tally
from nsabench.verdicts.statistics import geometric_mean

STANDINGS = "Candidates against the best baseline of each run"
SIGNS = {
    Difference.FASTER: "▲",
    Difference.SLOWER: "▼",
    Difference.SAME: "=",
    Difference.INCONCLUSIVE: "?",
    Difference.INVALID: "✕",
}


def _list_headings(comparison: Comparison) -> list[str]:
    return [side.heading for side in comparison.sides]


def runs(comparison: Comparison) -> Table:
    differing = comparison.differing
    rows = [
        (
            side.name,
            Name(side.plan.run_id),
            f"{side.plan.created:%Y-%m-%d %H:%M}",
            side.trust.value,
            *(values[place] or "–" for values in differing.values()),
        )
        for place, side in enumerate(comparison.sides)
    ]
    return Table("Runs", ("run", "id", "made", "trust", *differing), rows)


def pays(comparison: Comparison) -> Table:
    places = range(len(comparison.sides))
    rows = [
        (
            paid.what,
            paid.regime.value,
            *(paid.said(place) for place in places),
            _describe_changes(paid.shifts),
        )
        for paid in comparison.payments
    ]
    columns = ("op", "regime", *_list_headings(comparison), "change")
    return Table("From which length on it pays", columns, rows)


def _describe_changes(shifts: Sequence[PaymentShift]) -> str:
    return "; ".join(": ".join(filter(None, (s.change or "", s.why))) or "–" for s in shifts)


def changes(comparison: Comparison, later: int) -> Table:
    rows = []
    for cell, shift in comparison.changes(later):
        before, after = cell.records[0], cell.records[later + 1]
        statuses = Tag(cell.status(0)), Tag(cell.status(later + 1))
        why = next((r.reason for r in (after, before) if r and r.reason), "")
        change = Tag(shift.change or "")
        rows.append((change, cell.label, Name(cell.implementation), *statuses, why))
    columns = ("change", "case", "implementation", "before", "after", "reason")
    title = f"Statuses that changed in {comparison.later[later].name}"
    return Table(title, columns, rows, nothing="None.", is_long=True)


def means(comparison: Comparison, later: int) -> Table:
    rows = [
        (
            mean.op,
            Name(mean.implementation),
            mean.role.value,
            number(mean.value, ".3f"),
            str(mean.valid),
            str(mean.invalid),
            _count_differences(mean),
        )
        for mean in comparison.means(later)
    ]
    numbers = ("geometric mean", "of cells", "invalid")
    columns = ("op", "implementation", "role", *numbers, "cells")
    title = f"{comparison.later[later].name} against {comparison.first.name}"
    return Table(title, columns, rows, numbers)


def _count_differences(mean: Mean) -> str:
    words = [f"{mean.differences[d]} {d}" for d in Difference if mean.differences[d]]
    return ", ".join(words) or "declined by both"


def slower(comparison: Comparison, later: int) -> Table:
    rows = []
    for cell, regime, shift in comparison.slower(later):
        records = cell.records[0], cell.records[later + 1]
        times = [number(r.median_in(regime) if r else None, ".4g") for r in records]
        rows.append(
            (cell.label, Name(cell.implementation), regime.value, *times, _format_ratio(shift))
        )
    numbers = ("ms before", "ms after", Ours("ratio [95 %]"))
    columns = ("case", "implementation", "regime", *numbers)
    title = f"Slower in {comparison.later[later].name}"
    return Table(title, columns, rows, numbers, nothing="No candidate.", is_long=True)


def _format_ratio(shift: Shift) -> str:
    return Ours(f"{shift.ratio:.3f} [{shift.lo:.3f}, {shift.hi:.3f}]")


def over_all(comparison: Comparison) -> Table:
    """Return every case in every run. Cases that changed come first."""
    rows = [
        (cell.label, Name(cell.implementation), *_list_runs(cell))
        for cell in sorted(comparison.judged, key=_has_changed, reverse=True)
    ]
    columns = ("case", "candidate", *_list_headings(comparison))
    return Table("Every case in every run", columns, rows, is_long=True)


def _list_runs(cell: ComparedCell) -> Iterator[str]:
    first = cell.records[0]
    timed = first is not None and first.status is Status.OK and first.median_ms is not None
    yield f"{first.median_ms:.4g} ms" if first and timed else cell.status(0)
    for run, shift in enumerate(cell.shifts, 1):
        if cell.status(run) != Status.OK or shift.difference is None:
            yield cell.status(run)
        else:
            sign = SIGNS[shift.difference]
            yield sign if shift.ratio is None else f"{sign} {shift.ratio:.3f}"


def _has_changed(cell: ComparedCell) -> bool:
    real = (Difference.FASTER, Difference.SLOWER)
    return any(s.change is not None or s.difference in real for s in cell.shifts)


def standings(comparison: Comparison) -> Table:
    rows = [
        (cell.label, Name(cell.implementation), *map(standing, cell.records))
        for cell in comparison.candidates
    ]
    columns = ("case", "candidate", *_list_headings(comparison))
    nothing = "No candidate takes part."
    return Table(f"{STANDINGS}, case by case", columns, rows, nothing=nothing, is_long=True)


def standing(record: Record | None) -> str:
    """Return `1.23x faster (device)`, or the status of a record without a ratio."""
    if record is None:
        return MISSING
    if record.status is not Status.OK or record.speedup is None:
        return record.status
    text = f"{record.speedup:.2f}x {record.verdict} ({record.regime})"
    caution = beside(record, record.regime)
    return f"{text}, {caution}" if caution else text


def matrix(comparison: Comparison) -> Table:
    """Return the counts of cases and verdicts, and the mean speed-up, by candidate and run."""
    groups = grouped(comparison.candidates, lambda cell: (cell.case.op, cell.implementation))
    runs = range(len(comparison.sides))
    rows = [
        (op, Name(name), *(_summarise([cell.records[run] for cell in cells]) for run in runs))
        for (op, name), cells in groups.items()
    ]
    return Table(STANDINGS, ("op", "candidate", *_list_headings(comparison)), rows)


def _summarise(records: Sequence[Record | None]) -> str:
    if len(records) == 1:
        return standing(records[0])
    measured = [record for record in records if record is not None]
    right = sum(record.status is Status.OK for record in measured)
    mean = geometric_mean(r.speedup for r in measured if r.speedup is not None)
    parts = [f"{right}/{len(records)} ok"]
    if mean is not None:
        faster = sum(record.verdict is Verdict.FASTER for record in measured)
        regimes = "/".join(dict.fromkeys(record.regime for record in measured))
        parts += [f"{mean:.2f}x", f"{faster} faster ({regimes})"]
        parts += filter(None, [tally(beside(r, r.regime) for r in measured)])
    return ", ".join(parts)

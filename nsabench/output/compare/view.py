"""The tables of a comparison, which the terminal, Markdown and the page share."""

from __future__ import annotations

from collections.abc import Sequence

from nsabench.model.vocabulary import Status, Verdict
from nsabench.output import grouped
from nsabench.output.compare import over_many
from nsabench.output.compare.band import BAND_IN_QUEUE
from nsabench.output.compare.comparison import Comparison, Mean, Measurement
from nsabench.output.compare.payments import PaymentShift
from nsabench.output.compare.shift import Shift
from nsabench.output.compare.vocabulary import Difference
from nsabench.output.table import Name, Ours, Table, Tag, number
from nsabench.verdicts.caution import tally
from nsabench.verdicts.statistics import geometric_mean

BY_SAMPLES = "on the device, or in graphs where that is the mode"


def _headings(comparison: Comparison) -> list[str]:
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
    rows = [
        (
            paid.what,
            paid.regime.value,
            *(paid.said(place) for place in range(len(comparison.sides))),
            _change(paid.shifts),
        )
        for paid in comparison.payments
    ]
    columns = ("op", "regime", *_headings(comparison), "change")
    return Table("From which length on it pays", columns, rows)


def _change(shifts: Sequence[PaymentShift]) -> str:
    """What changed in each later run; a dash where nothing did."""
    return "; ".join(": ".join(filter(None, (s.change or "", s.why))) or "–" for s in shifts)


def changes(comparison: Comparison, later: int) -> Table:
    rows = []
    for cell, shift in comparison.changes(later):
        before, after = cell.measurements[0], cell.measurements[later + 1]
        statuses = Tag(before.status), Tag(after.status)
        why = after.reason or before.reason
        rows.append((Tag(shift.change), cell.label, Name(cell.implementation), *statuses, why))
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
            _counts(mean),
        )
        for mean in comparison.means(later)
    ]
    numbers = ("geometric mean", "of cells", "invalid")
    columns = ("op", "implementation", "role", *numbers, "cells")
    title = f"{comparison.later[later].name} against {comparison.first.name}"
    return Table(title, columns, rows, numbers)


def _counts(mean: Mean) -> str:
    words = [f"{mean.differences[d]} {d}" for d in Difference if mean.differences[d]]
    return ", ".join(words) or "declined by both"


def slower(comparison: Comparison, later: int) -> Table:
    rows = [
        (
            cell.label,
            Name(cell.implementation),
            *(number(cell.measurements[run].median_ms, ".4g") for run in (0, later + 1)),
            _ratio(shift),
        )
        for cell, shift in comparison.slower(later)
    ]
    numbers = ("ms before", "ms after", Ours("ratio [95 %]"))
    columns = ("case", "implementation", *numbers)
    title = f"Slower in {comparison.later[later].name}, {BY_SAMPLES}"
    return Table(title, columns, rows, numbers, nothing="No candidate.", is_long=True)


def slower_in_queue(comparison: Comparison, later: int) -> Table:
    rows = [
        (cell.label, Name(cell.implementation), _ratio(shift))
        for cell, shift in comparison.slower_in_queue(later)
    ]
    numbers = (Ours("ratio [20 and 80 % quantiles]"),)
    columns = ("case", "implementation", *numbers)
    title = f"Slower in {comparison.later[later].name}, called from Python back to back"
    nothing = f"No candidate, by more than {BAND_IN_QUEUE:.0%}."
    return Table(title, columns, rows, numbers, nothing, is_long=True)


def _ratio(shift: Shift) -> str:
    return Ours(f"{shift.ratio:.3f} [{shift.lo:.3f}, {shift.hi:.3f}]")


def over_all(comparison: Comparison, *, differing: bool = False) -> Table:
    """Every case in every run. differing: only the cases that are not alike in all of them."""
    rows = [
        (cell.label, Name(cell.implementation), *over_many.in_each_run(cell))
        for cell in sorted(comparison.judged, key=over_many.differs, reverse=True)
        if over_many.differs(cell) or not differing
    ]
    columns = ("case", "candidate", *_headings(comparison))
    return Table("Every case in every run", columns, rows, is_long=True)


STANDINGS = "Candidates against the best baseline of each run"


def standings(comparison: Comparison) -> Table:
    rows = [
        (cell.label, Name(cell.implementation), *map(standing, cell.measurements))
        for cell in comparison.candidates
    ]
    columns = ("case", "candidate", *_headings(comparison))
    return Table(STANDINGS, columns, rows, nothing="No candidate takes part.", is_long=True)


def standing(measurement: Measurement) -> str:
    """`1.23x faster (device)`, or the status that keeps it from having a ratio."""
    if measurement.status != Status.OK or measurement.speedup is None:
        return measurement.status
    said = f"{measurement.speedup:.2f}x {measurement.verdict} ({measurement.regime})"
    return f"{said}, {measurement.caution}" if measurement.caution else said


def matrix(comparison: Comparison) -> Table:
    """Each candidate over its cases: in each run how many are ok, the mean speed-up, verdicts."""
    groups = grouped(comparison.candidates, lambda cell: (cell.case.op, cell.implementation))
    runs = range(len(comparison.sides))
    rows = [
        (op, Name(name), *(_tally([cell.measurements[run] for cell in cells]) for run in runs))
        for (op, name), cells in groups.items()
    ]
    headings = _headings(comparison)
    return Table(STANDINGS, ("op", "candidate", *headings), rows, headings)


def _tally(measurements: Sequence[Measurement]) -> str:
    if len(measurements) == 1:
        return standing(measurements[0])
    right = sum(measurement.status == Status.OK for measurement in measurements)
    mean = geometric_mean(m.speedup for m in measurements if m.speedup is not None)
    said = [f"{right}/{len(measurements)} ok"]
    if mean is not None:
        faster = sum(measurement.verdict == Verdict.FASTER for measurement in measurements)
        regimes = "/".join(dict.fromkeys(m.regime for m in measurements if m.regime))
        said += [f"{mean:.2f}x", f"{faster} faster ({regimes})"]
        said += filter(None, [tally(m.caution for m in measurements)])
    return ", ".join(said)

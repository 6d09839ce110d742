"""A comparison in a terminal: what changed first, then how much faster or slower."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from nsabench.assessment.caution import tally as tally_of
from nsabench.assessment.statistics import geometric_mean
from nsabench.model.vocabulary import Role, Status, Verdict
from nsabench.output.compare import over_many
from nsabench.output.compare.comparison import ComparedCell, Comparison
from nsabench.output.compare.markdown import change, counts, ratio, standing
from nsabench.output.compare.vocabulary import Change, Difference
from nsabench.text import shown

MOST = 20
# What is said of the samples of a case: that they are of the device, or of replays.
BY_SAMPLES = "(device, or graph where that is the mode)"
STYLES = {
    Change.BROKE: "bold red",
    Change.MENDED: "green",
    Change.OTHER: "yellow",
    Difference.FASTER: "green",
    Difference.SLOWER: "bold red",
}


def render(comparison: Comparison) -> Group:
    return Group(*_parts(comparison))


def _parts(comparison: Comparison) -> Iterator[RenderableType]:
    for side in comparison.sides:
        if side.objection:
            yield Text(shown(side.objection), "bold red")
    for line in comparison.disagreements:
        yield Text(shown(f"left out: {line}"), "yellow")
    for later, side in enumerate(comparison.later):
        yield from _changes(comparison, later, side.name)
        yield from _slower(comparison, later, side.name)
    if len(comparison.later) > 1:
        yield from _over_many(comparison)
    if comparison.payments:
        yield _pays(comparison)
    if any(cell.role is Role.CANDIDATE for cell in comparison.cells):
        yield version_matrix(comparison)
    for later, side in enumerate(comparison.later):
        yield _means(comparison, later, side.name)


def _table(title: str, *columns: tuple[str, str]) -> Table:
    table = Table(title=Text(shown(title)), title_justify="left", header_style="bold")
    for name, justify in columns:
        table.add_column(Text(shown(name)), justify="right" if justify == "right" else "left")
    return table


def _pays(comparison: Comparison) -> Table:
    table = _table(
        "from which length on it pays",
        ("op", "left"),
        ("regime", "left"),
        *((side.heading, "left") for side in comparison.sides),
        ("change", "left"),
    )
    for paid in comparison.payments:
        worst = next((s.change for s in paid.shifts if s.change), None)
        table.add_row(
            Text(shown(paid.name.rpartition(" (")[0])),
            paid.regime.value,
            *(Text(shown(paid.said(number))) for number in range(len(comparison.sides))),
            Text(shown(change(paid.shifts)), STYLES[worst] if worst else ""),
        )
    return table


def _over_many(comparison: Comparison) -> Iterator[RenderableType]:
    found = over_many.breakages(comparison)
    for one in found:
        yield Text(shown(one.sentence), STYLES[one.change or Difference.SLOWER])
    if not found:
        yield Text("nothing broke, and nothing got slower, in any run")
    lines = [line for line in over_many.lines(comparison) if line.differs]
    if not lines:
        return
    table = _table(
        "cases that differ, in every run (▲ faster ▼ slower = same ? inconclusive ✕ invalid)",
        ("case", "left"),
        ("candidate", "left"),
        *((side.heading, "right") for side in comparison.sides),
    )
    for line in lines[:MOST]:
        texts = (Text(shown(text)) for text in line.texts)
        table.add_row(Text(shown(line.cell.label)), Text(shown(line.cell.implementation)), *texts)
    yield table
    yield from _left_out(len(lines))


def _changes(comparison: Comparison, later: int, name: str) -> Iterator[RenderableType]:
    changes = comparison.changes(later)
    if not changes:
        yield Text(f"{name}: every status is what it was in {comparison.first.name}")
        return
    table = _table(
        f"statuses that changed in {name}",
        *((n, "left") for n in ("change", "case", "implementation", "before", "after", "reason")),
    )
    for cell, shift in changes[:MOST]:
        before, after = cell.measurements[0], cell.measurements[later + 1]
        table.add_row(
            Text(str(shift.change), STYLES[shift.change] if shift.change else ""),
            Text(shown(cell.label)),
            Text(shown(cell.implementation)),
            before.status,
            after.status,
            Text(shown(after.reason or before.reason)[:120]),
        )
    yield table
    yield from _left_out(len(changes))


def _slower(comparison: Comparison, later: int, name: str) -> Iterator[RenderableType]:
    slower = sorted(comparison.slower(later), key=lambda pair: pair[1].ratio or 0)
    if not slower:
        return
    table = _table(
        f"slower in {name} {BY_SAMPLES}",
        ("case", "left"),
        ("implementation", "left"),
        ("ratio [95 %]", "right"),
    )
    for cell, shift in slower[:MOST]:
        table.add_row(Text(shown(cell.label)), Text(shown(cell.implementation)), ratio(shift))
    yield table
    yield from _left_out(len(slower))


def version_matrix(comparison: Comparison) -> Table:
    """Each candidate in each run: cases that are ok, the mean speed-up over the best baseline of
    that run, and its verdicts."""
    groups: dict[tuple[str, str], list[ComparedCell]] = {}
    for cell in comparison.cells:
        if cell.role is Role.CANDIDATE:
            groups.setdefault((cell.case.op, cell.implementation), []).append(cell)
    table = _table(
        "candidates against the best baseline of each run",
        ("op", "left"),
        ("candidate", "left"),
        *((side.heading, "right") for side in comparison.sides),
    )
    for (op, name), cells in groups.items():
        table.add_row(
            shown(op),
            Text(shown(name)),
            *(_tally(cells, number) for number in range(len(comparison.sides))),
        )
    return table


def _tally(cells: list[ComparedCell], number: int) -> str:
    if len(cells) == 1:
        return standing(cells[0].measurements[number])
    measurements = [cell.measurements[number] for cell in cells]
    good = sum(measurement.status == Status.OK for measurement in measurements)
    mean = geometric_mean(m.speedup for m in measurements if m.speedup is not None)
    faster = sum(measurement.verdict == Verdict.FASTER for measurement in measurements)
    tally = f"{good}/{len(cells)} ok"
    regimes = "/".join(dict.fromkeys(m.regime for m in measurements if m.regime))
    if mean is None:
        return tally
    bear = tally_of(m.caution for m in measurements)
    return f"{tally}, {mean:.2f}x, {faster} faster ({regimes}){f', {bear}' if bear else ''}"


def _means(comparison: Comparison, later: int, name: str) -> Table:
    table = _table(
        f"{name} against {comparison.first.name}: time there / time here, geometric mean "
        f"{BY_SAMPLES}",
        ("op", "left"),
        ("implementation", "left"),
        ("ratio", "right"),
        ("of cells", "right"),
        ("invalid", "right"),
        ("cells", "left"),
    )
    for mean in comparison.means(later):
        table.add_row(
            shown(mean.op),
            Text(shown(mean.implementation)),
            "-" if mean.value is None else f"{mean.value:.3f}",
            str(mean.valid),
            str(mean.invalid),
            counts(mean),
        )
    return table


def _left_out(count: int) -> Iterator[RenderableType]:
    if count > MOST:
        yield Text(f"... and {count - MOST} more", "dim")

from collections import Counter
from collections.abc import Iterator, Sequence

from rich.console import Group

from nsabench import labels
from nsabench.model.record import Record
from nsabench.model.vocabulary import Difference, Status, Verdict
from nsabench.output import grouped
from nsabench.output.compare.comparison import RunComparison
from nsabench.output.document import (
    Block,
    Name,
    Ours,
    Sentence,
    TableBlock,
    Tag,
    as_markdown,
    number,
    on_terminal,
)
from nsabench.output.programs import ComparedCase, CompareDocument, ComparedRun, Outcome
from nsabench.text import markdown
from nsabench.verdicts.statistics import geometric_mean


def blocks(comparison: RunComparison) -> Iterator[Block]:
    for side in comparison.sides:
        if side.objection:
            yield Sentence(f"{side.objection}.", "bold red")
    for line in comparison.disagreements:
        yield Sentence(f"left out: {line}", "yellow")
    later = range(len(comparison.later))
    for run in later:
        yield _build_changes(comparison, run)
        yield _build_slower(comparison, run)
    if comparison.candidates:
        yield _build_standings(comparison)
    for run in later:
        yield from _build_means(comparison, run)
    yield _build_runs(comparison)
    if not comparison.differing:
        yield Sentence("Device, versions and commits are the same in all, as far as is known.")


def render(comparison: RunComparison) -> Group:
    return Group(*on_terminal(blocks(comparison)))


def to_markdown(comparison: RunComparison) -> str:
    introduction = (
        "Ratio: median time in the first run over that in the later one, with its 95 % interval. "
        "Above 1 the later run is faster. The times are those of the regime device, or graph if "
        "that is the mode, without the timer's share. Times within "
        f"{number(comparison.band, '.0%')} of each other are the same. The band is wider if "
        "unchanged baselines differ by more. `nsabench compare --json` has every cell."
    )
    title = f"# Comparison with {markdown(comparison.first.name)}"
    parts = [title, introduction, *map(as_markdown, blocks(comparison))]
    return "\n\n".join(parts) + "\n"


def _build_runs(comparison: RunComparison) -> TableBlock:
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
    return TableBlock("Runs", ("run", "id", "made", "trust", *differing), rows)


def _build_changes(comparison: RunComparison, later: int) -> TableBlock:
    rows = []
    for cell, shift in comparison.changes(later):
        before, after = cell.records[0], cell.records[later + 1]
        statuses = Tag(cell.status(0)), Tag(cell.status(later + 1))
        why = next((r.reason for r in (after, before) if r and r.reason), "")
        label = labels.case_with_op(cell.case)
        rows.append((Tag(shift.change or ""), label, Name(cell.implementation), *statuses, why))
    columns = ("change", "case", "implementation", "before", "after", "reason")
    title = f"Statuses that changed in {comparison.later[later].name}"
    return TableBlock(title, columns, rows, nothing="None.", is_long=True)


def _build_slower(comparison: RunComparison, later: int) -> TableBlock:
    rows = []
    for cell, regime, shift in comparison.slower(later):
        records = cell.records[0], cell.records[later + 1]
        times = [number(r.median_in(regime) if r else None, ".4g") for r in records]
        label = labels.case_with_op(cell.case)
        ratio = Ours(f"{shift.ratio:.3f} [{shift.lo:.3f}, {shift.hi:.3f}]")
        rows.append((label, Name(cell.implementation), regime.value, *times, ratio))
    numbers = ("ms before", "ms after", Ours("ratio [95 %]"))
    columns = ("case", "implementation", "regime", *numbers)
    title = f"Slower in {comparison.later[later].name}"
    return TableBlock(title, columns, rows, numbers, nothing="No candidate.", is_long=True)


def _build_means(comparison: RunComparison, later: int) -> Iterator[TableBlock]:
    numbers = ("geometric mean", "of cells")
    columns = ("implementation", "role", *numbers, "cells")
    for op, of_op in grouped(comparison.cells, lambda cell: cell.case.op).items():
        rows = []
        for name, cells in grouped(of_op, lambda cell: cell.implementation).items():
            shifts = [cell.shifts[later] for cell in cells]
            ratios = [shift.ratio for shift in shifts if shift.ratio is not None]
            counts = Counter(shift.difference for shift in shifts)
            words = ", ".join(f"{counts[d]} {d}" for d in Difference if counts[d])
            mean, role = number(geometric_mean(ratios), ".3f"), cells[0].role.value
            rows.append((Name(name), role, mean, str(len(ratios)), words or "declined by both"))
        title = f"{comparison.later[later].name} against {comparison.first.name}: {op}"
        yield TableBlock(title, columns, rows, numbers)


def _build_standings(comparison: RunComparison) -> TableBlock:
    groups = grouped(comparison.candidates, lambda cell: (cell.case.op, cell.implementation))
    runs = range(len(comparison.sides))
    rows = [
        (op, Name(name), *(_summarise([cell.records[run] for cell in cells]) for run in runs))
        for (op, name), cells in groups.items()
    ]
    headings = [side.heading for side in comparison.sides]
    title = "Candidates against the best baseline of each run"
    return TableBlock(title, ("op", "candidate", *headings), rows)


def _summarise(records: Sequence[Record | None]) -> str:
    measured = [record for record in records if record is not None]
    right = sum(record.status is Status.OK for record in measured)
    mean = geometric_mean(r.speedup for r in measured if r.speedup is not None)
    parts = [f"{right}/{len(records)} ok"]
    if mean is not None:
        faster = sum(record.verdict is Verdict.FASTER for record in measured)
        regimes = "/".join(dict.fromkeys(record.regime for record in measured))
        parts += [f"{mean:.2f}x", f"{faster} faster ({regimes})"]
        parts += filter(None, [labels.count_cautions(r.caution_in(r.regime) for r in measured)])
    return ", ".join(parts)


def as_document(comparison: RunComparison, exit_code: int = 0) -> CompareDocument:
    return CompareDocument(
        exit_code=exit_code,
        band=comparison.band,
        disagreements=list(comparison.disagreements),
        runs=[
            ComparedRun(
                name=side.name,
                run_id=side.plan.run_id,
                created=side.plan.created.isoformat(),
                trust=side.trust.value,
                objection=side.objection,
                versions=dict(side.versions),
                unpaired=side.unpaired,
            )
            for side in comparison.sides
        ],
        cells=[
            ComparedCase(
                case_id=cell.planned.id,
                case=labels.case_with_op(cell.case),
                op=cell.case.op,
                implementation=cell.implementation,
                role=cell.role,
                runs=[_describe_outcome(record) for record in cell.records],
                later=list(cell.shifts),
            )
            for cell in comparison.cells
        ],
    )


def _describe_outcome(record: Record | None) -> Outcome:
    if record is None:
        return Outcome(status="missing", reason="it was planned and not measured")
    return Outcome(**Outcome.values_of(record))

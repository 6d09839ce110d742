"""Renders a comparison for the terminal, as Markdown, as a page and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Group

from nsabench import labels
from nsabench.files import write_text
from nsabench.model.record import Record
from nsabench.model.vocabulary import Change, Role
from nsabench.output.compare import tables
from nsabench.output.compare.comparison import Comparison
from nsabench.output.compare.payments import ComparedPayment
from nsabench.output.compare.shift import MISSING, Shift
from nsabench.output.document import Block, Sentence, as_markdown, number, on_terminal
from nsabench.output.report import html
from nsabench.text import markdown
from nsabench.verdicts.caution import beside

SIGNS_MEAN = (
    "The first run, and each later one held against it: ▲ faster, ▼ slower, = the same, "
    "? inconclusive, and by how much (time there / time here); ✕ without a ratio; else the status."
)
MEASURED = (
    *("status", "reason", "median_ms", "best_baseline", "speedup", "speedup_lo", "speedup_hi"),
    *("verdict", "regime"),
)
UNMEASURED = dict.fromkeys(MEASURED) | {
    "status": MISSING,
    "reason": "it was planned and not measured",
    "best_baseline": "",
    "regime": "",
    "caution": "",
}


def blocks(comparison: Comparison) -> Iterator[Block]:
    for side in comparison.sides:
        if side.objection:
            yield Sentence(f"{side.objection}.", "bold red")
    for line in comparison.disagreements:
        yield Sentence(f"left out: {line}", "yellow")
    later = range(len(comparison.later))
    if len(later) > 1:
        for breakage in comparison.breakages:
            yield Sentence(breakage.sentence, "bold red")
        if not comparison.breakages:
            yield Sentence("Nothing broke, and nothing got slower.")
    for run in later:
        yield tables.changes(comparison, run)
        yield tables.slower(comparison, run)
    if len(later) > 1:
        yield tables.over_all(comparison)
        yield Sentence(SIGNS_MEAN)
    if comparison.payments:
        yield tables.pays(comparison)
    if comparison.candidates:
        yield tables.matrix(comparison)
    for run in later:
        yield tables.means(comparison, run)
    yield tables.standings(comparison)
    yield tables.runs(comparison)
    if not comparison.differing:
        yield Sentence("Device, versions and commits are the same in all, as far as is known.")


def render(comparison: Comparison) -> Group:
    return Group(*on_terminal(blocks(comparison)))


def to_markdown(comparison: Comparison) -> str:
    introduction = (
        "Ratio: median time in the first run over that in the later one, with its 95 % interval; "
        "above 1 the later one is faster. It is of the samples, less what the timer adds: of the "
        "regime device, or graph where that is the mode. Where a baseline of the case is known to "
        "be the same code in both runs, the ratio is to that one, so that the hosts cancel. Within "
        f"{number(comparison.band, '.0%')} of 1, or further where such baselines of like duration "
        "differ by more, they are the same. `nsabench compare --json` has what tables leave out."
    )
    title = f"# Comparison with {markdown(comparison.first.name)}"
    parts = [title, introduction, *map(as_markdown, blocks(comparison))]
    return "\n\n".join(parts) + "\n"


def write_page(comparison: Comparison, path: Path) -> Path:
    """Write the page. Raises `EnvironmentRefused` if the extra `report` is not installed."""
    return write_text(path, page(comparison))


def page(comparison: Comparison) -> str:
    data = {
        **html.rows(_list_rows(comparison)),
        "runs": [side.name for side in comparison.sides],
        "band": comparison.band,
        "margin": comparison.first.plan.margin,
    }
    records = [r for cell in comparison.cells for r in cell.records if r]
    return html.render(
        "comparison.html.j2",
        ("comparison.js",),
        data,
        comparison=comparison,
        later=[_summarise_later(comparison, number) for number in range(len(comparison.later))],
        runs=tables.runs(comparison),
        pays=tables.pays(comparison),
        breakages=comparison.breakages if len(comparison.later) > 1 else [],
        cautions=sorted({beside(r, r.regime) for r in records} - {""}),
    )


def _summarise_later(comparison: Comparison, number: int) -> dict[str, Any]:
    return {
        "side": comparison.later[number],
        "broken": len(comparison.broken(number)),
        "pays_less": sum(p.shifts[number].change is Change.BROKE for p in comparison.payments),
        "candidates": [m for m in comparison.means(number) if m.role is Role.CANDIDATE],
        "changes": tables.changes(comparison, number),
        "slower": tables.slower(comparison, number),
        "means": tables.means(comparison, number),
    }


def _list_rows(comparison: Comparison) -> Iterator[dict[str, Any]]:
    for cell in comparison.cells:
        case = {
            "label": labels.case(cell.case),
            "shape": labels.shape(cell.case),
            "case_id": cell.planned.id,
            "op": cell.case.op,
            "implementation": cell.implementation,
            "role": cell.role,
            "dtype": cell.case.dtype,
            "direction": cell.case.direction,
            "distribution": cell.case.distribution,
            "mode": cell.case.timing.mode,
            "length": cell.length,
            "streams": cell.case.streams,
        }
        shifts = (Shift(None), *cell.shifts)
        for side, record, shift in zip(comparison.sides, cell.records, shifts, strict=True):
            yield {**case, "run": side.name, **asdict(shift), **_list_measured(record)}


def _list_measured(record: Record | None) -> dict[str, Any]:
    if record is None:
        return UNMEASURED
    values = {name: getattr(record, name) for name in MEASURED}
    return values | {"caution": beside(record, record.regime)}


def as_data(comparison: Comparison) -> dict[str, Any]:
    """Return a comparison for programs, to which fields are only ever added. Times are in ms."""
    return {
        "band": comparison.band,
        "disagreements": list(comparison.disagreements),
        "runs": [
            {
                "name": side.name,
                "run_id": side.plan.run_id,
                "created": side.plan.created.isoformat(),
                "trust": side.trust.value,
                "objection": side.objection,
                "versions": side.versions,
                "unpaired": side.unpaired,
            }
            for side in comparison.sides
        ],
        "breakages": [
            {
                "op": found.op,
                "implementation": found.implementation,
                "run": found.run,
                "change": found.change,
                "statuses": list(found.statuses),
                "cases": [cell.planned.id for cell in found.cells],
            }
            for found in comparison.breakages
        ],
        "means": [
            {"run": side.name, **asdict(mean)}
            for later, side in enumerate(comparison.later)
            for mean in comparison.means(later)
        ],
        "pays": [_list_payment(paid) for paid in comparison.payments],
        "cells": [
            {
                "case_id": cell.planned.id,
                "case": cell.label,
                "op": cell.case.op,
                "implementation": cell.implementation,
                "role": cell.role,
                "runs": [_list_measured(record) for record in cell.records],
                "later": [asdict(shift) for shift in cell.shifts],
            }
            for cell in comparison.cells
        ],
    }


def _list_payment(paid: ComparedPayment) -> dict[str, Any]:
    return {
        "op": paid.op,
        "heads": paid.heads,
        "direction": paid.direction,
        "regime": paid.regime,
        "runs": [
            {"answer": p.answer, "from": p.length, "axis": p.axis} if p else None
            for p in paid.answers
        ],
        "later": [asdict(shift) for shift in paid.shifts],
    }

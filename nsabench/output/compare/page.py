"""A comparison as a page: what changed, the version matrix, and every cell."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nsabench import labels
from nsabench.model.vocabulary import Role
from nsabench.output.compare import over_many, view
from nsabench.output.compare.comparison import Comparison
from nsabench.output.compare.shift import Shift
from nsabench.output.compare.vocabulary import Change
from nsabench.output.report import html
from nsabench.output.report.files import replace


def write(comparison: Comparison, path: Path) -> Path:
    """Raises `EnvironmentRefused` where the extra `report` is not installed."""
    return replace(path, render(comparison))


def render(comparison: Comparison) -> str:
    """Return the page, which depends on the runs alone."""
    data = {
        **html.rows(_rows(comparison)),
        "runs": [side.name for side in comparison.sides],
        "band": comparison.band,
        "margin": comparison.first.plan.margin,
    }
    return html.render(
        "comparison.html.j2",
        ("comparison.js",),
        data,
        comparison=comparison,
        later=[_later(comparison, number) for number in range(len(comparison.later))],
        runs=view.runs(comparison),
        pays=view.pays(comparison),
        breakages=over_many.breakages(comparison) if len(comparison.later) > 1 else [],
        cautions=sorted({m.caution for c in comparison.cells for m in c.measurements if m.caution}),
    )


def _later(comparison: Comparison, number: int) -> dict[str, Any]:
    return {
        "side": comparison.later[number],
        "broken": len(comparison.broken(number)),
        "pays_less": sum(p.shifts[number].change is Change.BROKE for p in comparison.payments),
        "candidates": [m for m in comparison.means(number) if m.role is Role.CANDIDATE],
        "changes": view.changes(comparison, number),
        "slower": view.slower(comparison, number),
        "means": view.means(comparison, number),
    }


def _rows(comparison: Comparison) -> Iterator[dict[str, Any]]:
    """Yield a row for each cell and run. The ratio to the first run is null in that run."""
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
        for side, measurement, shift in zip(
            comparison.sides, cell.measurements, (Shift(None), *cell.shifts), strict=True
        ):
            yield {**case, "run": side.name, **asdict(shift), **asdict(measurement)}

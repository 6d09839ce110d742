"""A comparison as a page: what changed, the version matrix, and every cell."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nsabench.assessment import labels
from nsabench.model.vocabulary import Role
from nsabench.output.compare import over_many
from nsabench.output.compare.comparison import Comparison
from nsabench.output.compare.markdown import change, counts, ratio
from nsabench.output.report import html
from nsabench.output.report.files import replace

SCRIPTS = ("comparison.js",)
MOST = 60  # rows of the tables that need no script
TEXTS = (
    "label",
    "shape",
    "case_id",
    "op",
    "implementation",
    "role",
    "dtype",
    "direction",
    "distribution",
    "mode",
    "run",
    "status",
    "verdict",
    "reason",
    "best_baseline",
    "caution",
    "regime",
    "difference",
    "change",
    "why",
)
NUMBERS = (
    "length",
    "streams",
    "median_ms",
    "speedup",
    "speedup_lo",
    "speedup_hi",
    "ratio",
    "ratio_lo",
    "ratio_hi",
)


def write(comparison: Comparison, path: Path) -> Path:
    """Raises `EnvironmentRefused` where the extra `report` is not installed."""
    return replace(path, render(comparison))


def render(comparison: Comparison) -> str:
    """The page. The same runs give the same text."""
    data = {
        **html.rows(_rows(comparison), TEXTS, NUMBERS),
        "runs": [side.name for side in comparison.sides],
        "band": comparison.band,
        "margin": comparison.sides[0].plan.margin,
    }
    return html.render(
        "comparison.html.j2",
        SCRIPTS,
        data,
        comparison=comparison,
        later=[_later(comparison, number) for number in range(len(comparison.later))],
        counts=counts,
        breakages=over_many.breakages(comparison) if len(comparison.later) > 1 else [],
        ratio_text=ratio,
        pays_change=change,
        most=MOST,
        cautions=sorted({m.caution for c in comparison.cells for m in c.measurements if m.caution}),
    )


def _later(comparison: Comparison, number: int) -> dict[str, Any]:
    means = comparison.means(number)
    changes = comparison.changes(number)
    return {
        "side": comparison.later[number],
        "index": number + 1,
        "changes": changes,
        "broken": len(comparison.broken(number)),
        "pays_less": comparison.pays_less(number),
        "slower": sorted(comparison.slower(number), key=lambda pair: pair[1].ratio or 0),
        "means": means,
        "candidates": [mean for mean in means if mean.role is Role.CANDIDATE],
    }


def _rows(comparison: Comparison) -> Iterator[dict[str, Any]]:
    """One a cell and run; what compares it with the first run is null in the first."""
    for cell in comparison.cells:
        for number, (side, measurement) in enumerate(
            zip(comparison.sides, cell.measurements, strict=True)
        ):
            shift = cell.shifts[number - 1] if number else None
            yield {
                "label": labels.case(cell.case),
                "shape": labels.shape(cell.case),
                "case_id": cell.planned.id,
                "op": cell.case.op,
                "implementation": cell.implementation,
                "role": cell.role.value,
                "dtype": cell.case.dtype.value,
                "direction": cell.case.direction.value,
                "distribution": cell.case.distribution,
                "mode": cell.case.timing.mode.value,
                "run": side.name,
                "status": measurement.status,
                "verdict": measurement.verdict,
                "reason": measurement.reason,
                "best_baseline": measurement.best_baseline,
                "caution": measurement.caution,
                "regime": measurement.regime,
                "difference": shift.difference.value if shift and shift.difference else None,
                "change": shift.change.value if shift and shift.change else None,
                "why": shift.why if shift else "",
                "length": cell.length,
                "streams": cell.case.streams,
                "median_ms": measurement.median_ms,
                "speedup": measurement.speedup,
                "speedup_lo": measurement.speedup_lo,
                "speedup_hi": measurement.speedup_hi,
                "ratio": shift.ratio if shift else None,
                "ratio_lo": shift.lo if shift else None,
                "ratio_hi": shift.hi if shift else None,
            }

"""Draw the chart on the first screen: a candidate's ratios to its references, by length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from nsabench import labels, ops
from nsabench.model.vocabulary import Reference, Regime, Verdict
from nsabench.output import grouped
from nsabench.output.report import html
from nsabench.output.standing import Standing, judge, name_references

if TYPE_CHECKING:
    from markupsafe import Markup


@dataclass(frozen=True)
class RatioChart:
    """Ratios of one candidate. `decided` of a point is its ratio, or None if inconclusive."""

    candidate: str
    shape: str
    axis: str
    points: list[dict[str, Any]]

    @property
    def title(self) -> str:
        return f"{self.candidate} on {self.shape}: times as fast, over {self.axis}"

    @property
    def decided(self) -> list[bool]:
        return [point["decided"] is not None for point in self.points]

    def draw(self) -> Markup:
        return html.draw("ratio.vl.json", self.points, self.axis)


def build(standings: Sequence[Standing]) -> RatioChart | None:
    """Return the first chart with a clear ratio, or else the first with ratios at two lengths."""
    charts = list(filter(None, map(_build, standings)))
    return next((chart for chart in charts if any(chart.decided)), charts[0] if charts else None)


def _build(standing: Standing) -> RatioChart | None:
    by_series = grouped(sorted(standing.right, key=lambda r: r.length), ops.series_key)
    series = max(by_series.values(), key=len, default=[])
    points = []
    for reference, regime in product(Reference, Regime):
        found = [(r.length, r.compared(regime, reference)) for r in series]
        compared = [(length, c) for length, c in found if c and c.ratio is not None]
        line = f"{regime}: against {name_references(c for _, c in compared)}"
        for length, c in compared if len(compared) > 1 else ():
            verdict = judge(c)
            points.append(
                {
                    "line": line,
                    "length": length,
                    "value": c.ratio,
                    "decided": None if verdict is Verdict.INCONCLUSIVE else c.ratio,
                    "text": f"{line}, {length}: {c.ratio:.2f}x, {verdict}",
                    "reason": c.reason,
                }
            )
    if not points:
        return None
    shape, axis = labels.shape(series[0]), labels.axis(standing.op)
    return RatioChart(standing.implementation, shape, axis, points)

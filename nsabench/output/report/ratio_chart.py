"""The chart on the first screen: how many times as fast a candidate is, over the length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nsabench import labels, ops
from nsabench.model.record import Record
from nsabench.model.vocabulary import Reference, Regime
from nsabench.output import grouped
from nsabench.output.report import html
from nsabench.output.standing import Standing

if TYPE_CHECKING:
    from markupsafe import Markup

MOST_NAMED = 2  # references of a line


@dataclass(frozen=True)
class RatioChart:
    """Ratios of one candidate. lines: lengths and ratios by regime and reference."""

    candidate: str
    shape: str
    axis: str
    lines: dict[str, list[tuple[int, float]]]

    @property
    def title(self) -> str:
        return f"{self.candidate} on {self.shape}: times as fast, over {self.axis}"

    def draw(self) -> Markup:
        points = [
            {
                "line": name,
                "length": length,
                "value": ratio,
                "text": f"{name}, {length}: {ratio:.2f}x",
            }
            for name, line in self.lines.items()
            for length, ratio in line
        ]
        lengths = sorted({length for line in self.lines.values() for length, _ in line})
        axis = {"title": self.axis, "values": lengths}
        return html.draw("ratio.vl.json", {"points": points}, axis)


def build(standings: Sequence[Standing]) -> RatioChart | None:
    """Return the chart of the first candidate that has ratios at two lengths or more."""
    return next(filter(None, map(_build, standings)), None)


def _build(standing: Standing) -> RatioChart | None:
    by_series = grouped(standing.right, lambda r: ops.series_key(r))
    series = max(by_series.values(), key=len, default=[])
    lines = {
        f"{regime}: against {names}": points
        for reference in Reference
        for regime in Regime
        if len(points := _list_points(series, regime, reference)) > 1
        and (names := _name_references(series, regime, reference))
    }
    if not lines:
        return None
    axis = labels.axis(standing.op)
    sizes = labels.shape(series[0]).split()
    shape = " ".join(word for word in sizes if word != f"{axis}{series[0].length}")
    return RatioChart(standing.implementation, shape, axis, lines)


def _list_points(
    records: Sequence[Record], regime: Regime, reference: Reference
) -> list[tuple[int, float]]:
    found = [(r.length, r.compared(regime, reference)) for r in records]
    return sorted((length, c.ratio) for length, c in found if c and c.ratio is not None)


def _name_references(records: Sequence[Record], regime: Regime, reference: Reference) -> str:
    found = [r.compared(regime, reference) for r in records]
    names = list(dict.fromkeys(c.against for c in found if c and c.against))
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"{', '.join(names[:MOST_NAMED])}{more}"

"""Draws the time of an op over the length, beside its best alternative and its parts.

The parts of `nsa_attention` are other ops of the run on the same sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nsabench.model.record import Record
from nsabench.model.vocabulary import Regime, Role, Status
from nsabench.output import grouped
from nsabench.output.report import html
from nsabench.verdicts.break_even import CALLED, BreakEven, crossings

if TYPE_CHECKING:
    from markupsafe import Markup

Points = tuple[tuple[int, float], ...]
PARTS = {
    "nsa_attention": {
        "compressed": "compressed keys",
        "selection_blocks": "chosen blocks",
        "sliding_window": "window",
    }
}
# Sizes of a part by the names of the same sizes of its op.
SHARED = {
    size: size for size in ("B", "HQ", "H", "D", "Dv", "block", "stride", "block_size", "window")
} | {"S": "n_selected"}
AS_DRAWN = ("dense", "scored")  # chosen as the op chooses


@dataclass(frozen=True)
class Chart:
    """A chart of one decision. lines: lengths and times (ms) by name; crossings: lengths."""

    payment: BreakEven
    lines: Mapping[str, Points]
    crossings: Sequence[float]

    @property
    def title(self) -> str:
        return f"{self.payment.what} ({self.payment.regime})"

    @property
    def caption(self) -> str:
        called, axis = CALLED[self.payment.regime], self.payment.axis
        return f"{self.payment.sentence}. Median time of a call {called}, in ms over {axis}"

    def draw(self) -> Markup:
        points = [
            {"line": name, "length": length, "ms": ms, "text": f"{name}, {length}: {ms:.4g} ms"}
            for name, line in self.lines.items()
            for length, ms in line
        ]
        axis = self.payment.axis
        crossings = [{"length": x, "text": f"{axis} = {x:,.0f}"} for x in self.crossings]
        lengths = sorted({length for line in self.lines.values() for length, _ in line})
        return html.draw(
            "payment.vl.json",
            {"points": points, "crossings": crossings},
            {"title": axis, "values": lengths},
        )


def charts(payments: Sequence[BreakEven], records: Sequence[Record]) -> list[Chart]:
    """Return a chart for each decision that has at least two lengths."""
    return [drawn for p in payments if (drawn := _build_chart(p, records)) is not None]


def _build_chart(p: BreakEven, records: Sequence[Record]) -> Chart | None:
    series = max(p.series, key=len, default=[])
    if len(series) < 2:
        return None
    by_key = {r.key: r for r in records}
    wholes = [case.record for case in series]
    dense = [by_key[case.record.case_id, case.comparison.against] for case in series]
    lines = {
        p.op: _list_points(wholes, p.regime),
        "best alternative": _list_points(dense, p.regime),
    }
    for op, name in PARTS.get(p.op, {}).items():
        parts = [r for r in records if r.op == op and _is_part(r, wholes[0])]
        points = _list_points(parts, p.regime)
        if len(points) > 1:
            lines[name] = points
    return Chart(p, lines, crossings(series))


def _is_part(record: Record, whole: Record) -> bool:
    shared = [(own, size) for own, size in SHARED.items() if own in record.shape]
    return (
        all(record.shape[own] == whole.shape.get(size) for own, size in shared)
        and record.distribution in AS_DRAWN
        and record.role is Role.CANDIDATE
        and record.status is Status.OK
        and (record.dtype, record.direction) == (whole.dtype, whole.direction)
        and record.streams == 1
    )


def _list_points(records: Sequence[Record], regime: Regime) -> Points:
    timed = [(r.length, ms) for r in records if (ms := r.timed_in(regime))]
    lengths = grouped(timed, lambda point: point[0])
    return tuple((length, min(ms for _, ms in lengths[length])) for length in sorted(lengths))

"""The time of an op and of its parts over the length, beside the best alternative.

Each head layout, direction and regime has a chart, drawn as SVG that needs no script. Parts are
other ops of the run on the same sizes: of `nsa_attention` the compressed keys, the chosen blocks
and the window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil, floor, log2, log10

from nsabench.model.record import Record
from nsabench.model.vocabulary import Regime, Role, Status
from nsabench.output import grouped
from nsabench.verdicts.break_even import CALLED, BreakEven, crossings

PARTS = {
    "nsa_attention": {
        "compressed": "compressed keys",
        "selection_blocks": "chosen blocks",
        "sliding_window": "window",
    }
}
# The sizes that a part shares with its op, by their names in both.
SHARED = {
    size: size for size in ("B", "HQ", "H", "D", "Dv", "block", "stride", "block_size", "window")
} | {"S": "n_selected"}
AS_DRAWN = ("dense", "scored")  # chosen as the op chooses
BETWEEN_NAMES = 14  # pixels


@dataclass(frozen=True)
class Line:
    """kind: `whole`, `dense` or `part`; points: length and time in ms, rising."""

    name: str
    kind: str
    points: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Chart:
    payment: BreakEven
    lines: Sequence[Line]
    crossings: Sequence[float]  # lengths

    width, height = 620, 300
    left, right, top, bottom = 52, 470, 14, 266

    @property
    def title(self) -> str:
        p = self.payment
        return " ".join(filter(None, (p.op, p.heads, p.direction, f"({p.regime})")))

    @property
    def called(self) -> str:
        return CALLED[self.payment.regime]

    @cached_property
    def lengths(self) -> list[int]:
        return sorted({length for line in self.lines for length, _ in line.points})

    @cached_property
    def decades(self) -> list[float]:
        times = [ms for line in self.lines for _, ms in line.points]
        low, high = floor(log10(min(times))), ceil(log10(max(times)))
        return [10.0**power for power in range(low, max(high, low + 1) + 1)]

    def x(self, length: float) -> float:
        share = log2(length / self.lengths[0]) / (log2(self.lengths[-1] / self.lengths[0]) or 1.0)
        return round(self.left + (self.right - self.left) * share, 1)

    def y(self, ms: float) -> float:
        low, high = log10(self.decades[0]), log10(self.decades[-1])
        return round(self.top + (self.bottom - self.top) * (high - log10(ms)) / (high - low), 1)

    @property
    def names(self) -> list[tuple[float, str]]:
        """The names of the lines, each at the end of its line and below the name before it."""
        ends = sorted((self.y(line.points[-1][1]), line.name) for line in self.lines)
        placed: list[tuple[float, str]] = []
        for y, name in ends:
            below = placed[-1][0] + BETWEEN_NAMES if placed else y
            placed.append((max(y, below), name))
        return placed


def charts(payments: Sequence[BreakEven], records: Sequence[Record]) -> list[Chart]:
    """Return a chart for each decision that has two lengths or more."""
    return [drawn for p in payments if (drawn := _chart(p, records)) is not None]


def _chart(p: BreakEven, records: Sequence[Record]) -> Chart | None:
    """The op, its best alternative and its parts, on the length series with the most lengths."""
    series = max(p.series, key=len, default=[])
    if len(series) < 2:
        return None
    by_key = {r.key: r for r in records}
    wholes = [one.record for one in series]
    dense = [by_key[one.record.case_id, one.comparison.against] for one in series]
    lines = [
        Line(p.op, "whole", _points(wholes, p.regime)),
        Line("best alternative", "dense", _points(dense, p.regime)),
    ]
    for op, name in PARTS.get(p.op, {}).items():
        parts = [r for r in records if r.op == op and _is_part(r, wholes[0])]
        points = _points(parts, p.regime)
        if len(points) > 1:
            lines.append(Line(name, "part", points))
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


def _points(records: Sequence[Record], regime: Regime) -> tuple[tuple[int, float], ...]:
    timed = [(r.length, ms) for r in records if (ms := r.timed_in(regime))]
    lengths = grouped(timed, lambda point: point[0])
    return tuple((length, min(ms for _, ms in lengths[length])) for length in sorted(lengths))

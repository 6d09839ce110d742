"""The time of a whole op and of its parts over the length, the best alternative beside it, and
where the two cross: a drawing a head layout, direction and regime, as SVG that needs no script.

Parts are what other ops of the run are on the same sizes: of `nsa_attention` the compressed keys,
the chosen blocks and the window.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, floor, log2, log10
from typing import Any

from nsabench.assessment.pays import CALLED, Payment
from nsabench.model.record import Record
from nsabench.model.vocabulary import Regime, Role, Status

PARTS = {
    "nsa_attention": {
        "compressed": "compressed keys",
        "selection_blocks": "chosen blocks",
        "sliding_window": "window",
    }
}
ALIKE = ("B", "HQ", "H", "D", "Dv", "block", "stride", "block_size", "window")
ALSO = {"S": "n_selected"}  # of chosen blocks: what the whole calls otherwise
AS_DRAWN = ("dense", "scored")  # chosen as the whole chooses
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 620, 300, 52, 150, 14, 34


@dataclass(frozen=True)
class Line:
    """kind: `whole`, `dense` or `part`; points: length and time in ms, rising."""

    name: str
    kind: str
    points: tuple[tuple[int, float], ...]


def charts(payments: Sequence[Payment], records: Sequence[Record]) -> list[dict[str, Any]]:
    """What the template draws: a chart each decision that has two lengths or more."""
    return [drawn for p in payments if (drawn := _chart(p, records)) is not None]


def lines(p: Payment, records: Sequence[Record]) -> list[Line]:
    """The whole, its best alternative and its parts, on the ladder that has the most lengths."""
    by_case = {(r.case_id, r.implementation): r for r in records}
    ladders: dict[Any, list[Any]] = {}
    for cell in p.cells:
        if cell.ratio is not None:
            ladders.setdefault(cell.ladder, []).append(cell)
    best = max(ladders.values(), key=len, default=[])
    if len(best) < 2:
        return []
    wholes = [by_case[c.case_id, c.implementation] for c in best]
    dense = [by_case[c.case_id, c.alternative] for c in best]
    found = [
        Line(p.op, "whole", _points(wholes, p.regime)),
        Line("best alternative", "dense", _points(dense, p.regime)),
    ]
    for op, name in PARTS.get(p.op, {}).items():
        parts = [r for r in records if r.op == op and _is_part(r, wholes[0], p.regime)]
        points = _points(_fastest(parts, p.regime), p.regime)
        if len(points) > 1:
            found.append(Line(name, "part", points))
    return found


def _is_part(record: Record, whole: Record, regime: Regime) -> bool:
    shared = {size: size for size in ALIKE} | ALSO
    return (
        all(
            record.shape[own] == whole.shape.get(size)
            for own, size in shared.items()
            if own in record.shape
        )
        and record.distribution in AS_DRAWN
        and record.role is Role.CANDIDATE
        and record.status is Status.OK
        and record.timed_in(regime) is not None
        and (record.dtype, record.direction) == (whole.dtype, whole.direction)
        and record.streams == 1
    )


def _fastest(records: Sequence[Record], regime: Regime) -> list[Record]:
    fastest: dict[int, Record] = {}
    for r in records:
        known = fastest.get(r.length)
        if known is None or (known.timed_in(regime) or 0.0) > (r.timed_in(regime) or 0.0):
            fastest[r.length] = r
    return list(fastest.values())


def _points(records: Sequence[Record], regime: Regime) -> tuple[tuple[int, float], ...]:
    timed = ((r.length, r.timed_in(regime)) for r in records)
    return tuple(sorted((length, ms) for length, ms in timed if ms))


def _chart(p: Payment, records: Sequence[Record]) -> dict[str, Any] | None:
    shown = lines(p, records)
    if not shown:
        return None
    lengths = sorted({x for line in shown for x, _ in line.points})
    times = [y for line in shown for _, y in line.points]
    low, high = floor(log10(min(times))), ceil(log10(max(times)))
    high = max(high, low + 1)

    def x_of(length: float) -> float:
        span = log2(lengths[-1] / lengths[0]) or 1.0
        return LEFT + (WIDTH - LEFT - RIGHT) * log2(length / lengths[0]) / span

    def y_of(ms: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - log10(ms)) / (high - low)

    return {
        "title": " ".join(filter(None, (p.op, p.heads, str(p.direction), f"({p.regime})"))),
        "called": CALLED[p.regime],
        "sentence": p.sentence,
        "width": WIDTH,
        "height": HEIGHT,
        "left": LEFT,
        "right": WIDTH - RIGHT,
        "top": TOP,
        "bottom": HEIGHT - BOTTOM,
        "axis": p.axis,
        "ticks_x": [{"at": _short(x_of(n)), "text": _length(n)} for n in lengths],
        "ticks_y": [
            {"at": _short(y_of(10.0**power)), "text": f"{10.0**power:g}"}
            for power in range(low, high + 1)
        ],
        "lines": [_drawn(line, x_of, y_of) for line in _spread(shown, y_of)],
        "crossings": [
            {"at": _short(x_of(length)), "text": f"{p.axis} = {length:,.0f}"}
            for length in _crossings(shown)
        ],
    }


def _crossings(shown: Sequence[Line]) -> list[float]:
    """Lengths at which the two lines meet, read between their points on logarithmic axes."""
    whole, dense = dict(shown[0].points), dict(shown[1].points)
    lengths = sorted(whole.keys() & dense.keys())
    found = []
    for a, b in pairwise(lengths):
        before, behind = log2(dense[a] / whole[a]), log2(dense[b] / whole[b])
        if before < 0 <= behind:
            found.append(a * (b / a) ** (-before / (behind - before)))
    return found


def _spread(shown: Sequence[Line], y_of: Any) -> list[tuple[Line, float]]:
    """Each line with where its name stands, so that no two names overlap."""
    placed: list[tuple[Line, float]] = []
    at = float(TOP)
    for line in sorted(shown, key=lambda line: float(y_of(line.points[-1][1]))):
        at = max(at, float(y_of(line.points[-1][1])))
        placed.append((line, at))
        at += 14
    return placed


def _drawn(placed: tuple[Line, float], x_of: Any, y_of: Any) -> Mapping[str, Any]:
    line, name_at = placed
    points = [(_short(x_of(x)), _short(y_of(y))) for x, y in line.points]
    return {
        "name": line.name,
        "kind": line.kind,
        "path": " ".join(f"{x},{y}" for x, y in points),
        "points": [
            {"x": x, "y": y, "text": f"{line.name}, {_length(n)}: {ms:.4g} ms"}
            for (x, y), (n, ms) in zip(points, line.points, strict=True)
        ],
        "name_at": _short(name_at + 4),
    }


def _length(length: int) -> str:
    return f"{length // 1024}K" if length % 1024 == 0 else str(length)


def _short(value: float) -> float:
    return round(value, 1)

"""Cliff: a time that grows far more than its work is probably another program's.

Libraries silently fall back to uncompiled code, or to a backend for all inputs, and take tens of
times as long. An honest kernel grows at most by the square of its work. A cliff shows only in a
length series that begins below it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nsabench.checks.best_baseline import best_baseline
from nsabench.checks.finding import Effect, Finding
from nsabench.checks.limits import Limits
from nsabench.checks.roofline import impossible
from nsabench.checks.series import by_case, length_series, length_text
from nsabench.model.record import Record
from nsabench.model.vocabulary import Role

# Times the square of the work's growth. In three runs on an H200, uncompiled FlexAttention took 15
# to 44 times, and everything else at most twice.
LEAP = 8.0
IN_THE_RUNNING = 2.0  # times the best baseline at the foot: it may be the best at greater lengths


def check(rows: Sequence[Record], limits: Limits) -> list[Finding]:
    """Find every record on a cliff: after the leap, until one is faster than the edge."""
    possible = [
        r
        for r in rows
        if r.role is not Role.CONTROL and r.median_ms and not any(impossible(r, limits))
    ]
    cases = by_case(possible)
    return [finding for ladder in length_series(possible) for finding in _find_tops(ladder, cases)]


def _find_tops(ladder: list[Record], cases: dict[str, list[Record]]) -> Iterator[Finding]:
    foot, edge = ladder[0], None
    for row in ladder[1:]:
        if _leaps(foot, row):
            edge = edge or row
        elif edge is None or _ms(row) < _ms(edge):
            foot, edge = row, None
        if edge is None:
            continue
        # If the baseline may be the best, the whole case is in doubt.
        best = best_baseline(cases[foot.case_id])
        if row.role is Role.BASELINE and best and _ms(foot) <= IN_THE_RUNNING * _ms(best):
            sentence = f"{_describe(foot, edge)}; without that it may be the best baseline here"
            yield Finding("cliff", Effect.INCONCLUSIVE, sentence, row.case_id)
        else:
            yield Finding("cliff", Effect.NOTE, _describe(foot, edge), *row.key)


def _leaps(foot: Record, row: Record) -> bool:
    return _ms(row) > LEAP * _growth(foot, row) ** 2 * _ms(foot)


def _growth(foot: Record, row: Record) -> float:
    return max(
        row.length / foot.length,
        row.bytes_min / foot.bytes_min,
        row.flops / max(foot.flops, 1),
    )


def _describe(foot: Record, edge: Record) -> str:
    return (
        f"{edge.implementation} takes {_ms(foot):.3g} ms at {length_text(foot)} but "
        f"{_ms(edge):.3g} ms at {length_text(edge)}: {_ms(edge) / _ms(foot):.0f} times as long for "
        f"{_growth(foot, edge):.1f} times the work looks like another program (uncompiled, or "
        f"another backend)"
    )


def _ms(row: Record) -> float:
    assert row.median_ms is not None
    return row.median_ms

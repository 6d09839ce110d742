"""Monotone: an advantage that is there at some length and gone at a greater one."""

from __future__ import annotations

from collections.abc import Sequence

from nsabench.checks.best_baseline import best_baseline
from nsabench.checks.cases import by_case
from nsabench.checks.finding import Effect, Finding
from nsabench.checks.ladder import ladders
from nsabench.checks.limits import Limits
from nsabench.checks.row import Row
from nsabench.model.vocabulary import MARGIN, Role

LOST = 1.0


def check(rows: Sequence[Row], limits: Limits) -> list[Finding]:
    """Candidates for which "from this length on" is not how it is."""
    cases = by_case(rows)
    candidates = [r for r in rows if r.role is Role.CANDIDATE]
    falls = (_falls(ladder, cases) for ladder in ladders(candidates))
    return [finding for finding in falls if finding is not None]


def _falls(ladder: list[Row], cases: dict[str, list[Row]]) -> Finding | None:
    won: tuple[float, Row] | None = None
    for row in ladder:
        baseline = best_baseline(cases[row.case_id], beside=row)
        if baseline is None or not baseline.median_ms or not row.median_ms:
            continue
        speedup = baseline.median_ms / row.median_ms
        if won is not None and speedup < LOST:
            sentence = (
                f"{won[0]:.2f} times as fast as the baseline at {won[1].length_text} but "
                f"{speedup:.2f} at {row.length_text} ({row.label}): no length holds from there on"
            )
            return Finding("monotone", Effect.NOTE, sentence, row.case_id, row.implementation)
        if speedup >= MARGIN and won is None:
            won = speedup, row
    return None

"""Monotone: find advantages at some length that are lost at a greater length."""

from __future__ import annotations

from collections.abc import Sequence

from nsabench import labels
from nsabench.checks.best_baseline import best_baseline
from nsabench.checks.finding import Effect, Finding
from nsabench.checks.limits import Limits
from nsabench.checks.series import by_case, length_series, length_text
from nsabench.model.record import Record
from nsabench.model.vocabulary import MARGIN, Role

LOST = 1.0


def check(rows: Sequence[Record], limits: Limits) -> list[Finding]:
    cases = by_case(rows)
    candidates = [r for r in rows if r.role is Role.CANDIDATE]
    falls = (_find_fall(ladder, cases) for ladder in length_series(candidates))
    return [finding for finding in falls if finding is not None]


def _find_fall(ladder: list[Record], cases: dict[str, list[Record]]) -> Finding | None:
    won: tuple[float, Record] | None = None
    for row in ladder:
        baseline = best_baseline(cases[row.case_id], beside=row)
        if baseline is None or not baseline.median_ms or not row.median_ms:
            continue
        speedup = baseline.median_ms / row.median_ms
        if won is not None and speedup < LOST:
            sentence = (
                f"{won[0]:.2f} times as fast as the baseline at {length_text(won[1])} but "
                f"{speedup:.2f} at {length_text(row)} ({labels.case(row)}): no length holds from "
                f"there on"
            )
            return Finding("monotone", Effect.NOTE, sentence, *row.key)
        if speedup >= MARGIN and won is None:
            won = speedup, row
    return None

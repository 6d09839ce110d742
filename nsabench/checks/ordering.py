"""Ordering: the work of a call must be over when the caller's stream says so."""

from __future__ import annotations

from collections.abc import Sequence

from nsabench.checks.finding import Effect, Finding
from nsabench.checks.limits import Limits
from nsabench.checks.row import Row

# One late sample can be the host's noise; most samples cannot.
OFTEN = 0.5


def check(rows: Sequence[Row], limits: Limits) -> list[Finding]:
    """Records whose work outlived the end event in most samples."""
    return [
        Finding(
            "ordering",
            Effect.WRONG,
            f"in {row.escaped_share:.0%} of the samples work went on after the caller's stream "
            f"was done: the next operation on that stream would read an unfinished output",
            row.case_id,
            row.implementation,
        )
        for row in rows
        if row.timed_ms is not None and row.escaped_share > OFTEN
    ]

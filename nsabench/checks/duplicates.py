"""Duplicates: one implementation has one record a case."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from nsabench.checks.finding import Effect, Finding
from nsabench.checks.limits import Limits
from nsabench.checks.row import Row


def check(rows: Sequence[Row], limits: Limits) -> list[Finding]:
    """Records that are there more than once."""
    counts = Counter((r.case_id, r.implementation) for r in rows)
    return [
        Finding("duplicates", Effect.INVALID, f"it is there {count} times", case_id, name)
        for (case_id, name), count in counts.items()
        if count > 1
    ]

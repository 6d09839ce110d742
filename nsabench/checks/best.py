"""Which baseline of a case counts."""

from __future__ import annotations

from collections.abc import Sequence

from nsabench.checks.row import Row
from nsabench.words import Role


def best_baseline(rows: Sequence[Row]) -> Row | None:
    """The fastest baseline among the records of one case that is `ok` and within tolerance."""
    valid = [
        r
        for r in rows
        if r.role is Role.BASELINE
        and r.timed_ms is not None
        and (r.mae is None or r.mae <= r.mae_tolerance)
    ]
    return min(valid, key=lambda r: r.median_ms or 0.0, default=None)

"""Duplicates: find implementations with more than one record of a case."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from nsabench.checks.finding import Effect, Finding
from nsabench.checks.limits import Limits
from nsabench.model.record import Record


def check(rows: Sequence[Record], limits: Limits) -> list[Finding]:
    counts = Counter(r.key for r in rows)
    return [
        Finding("duplicates", Effect.INVALID, f"it is there {count} times", *key)
        for key, count in counts.items()
        if count > 1
    ]

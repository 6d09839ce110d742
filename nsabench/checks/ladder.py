"""Ladders: the records of one implementation that differ only in length."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence

from nsabench import ops
from nsabench.checks.row import Row


def ladders(rows: Sequence[Row]) -> list[list[Row]]:
    """Timed records grouped by everything but their length, each group in growing length."""
    groups: dict[Hashable, dict[int, Row]] = defaultdict(dict)
    for row in rows:
        if row.timed_ms is not None:
            groups[row.implementation, ops.ladder(row)].setdefault(row.length, row)
    return [[group[length] for length in sorted(group)] for group in groups.values()]

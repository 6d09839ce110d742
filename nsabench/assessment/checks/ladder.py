"""Ladders: the records of one implementation that differ only in length."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from nsabench import ops
from nsabench.assessment.checks.row import Row


def ladders(rows: Sequence[Row]) -> list[list[Row]]:
    """Timed records grouped by everything but their length, each group in growing length."""
    groups: dict[tuple[object, ...], dict[int, Row]] = defaultdict(dict)
    for row in rows:
        if row.timed_ms is not None:
            axis = ops.get(row.op).length_axis
            rest = tuple(sorted((a, s) for a, s in row.shape.items() if a != axis))
            key = (
                row.op,
                row.implementation,
                row.dtype,
                row.direction,
                row.distribution,
                row.streams,
                row.mode,
                rest,
            )
            groups[key].setdefault(row.length, row)
    return [[group[length] for length in sorted(group)] for group in groups.values()]

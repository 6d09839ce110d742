"""Times that do not follow the size, in a table whose columns do not give the whole shape.

What the work is, and so what it must take at least, is not known then; that it grew is.
"""

from __future__ import annotations

from nsabench.assessment.audit.table import Table
from nsabench.assessment.checks import Effect, Finding

GROWTH = 4.0
FLAT = 1.2  # largest over smallest time


def check(table: Table) -> list[Finding]:
    """Time columns that stay flat while the first size of the table grows."""
    axis = next((c for c in table.columns if c not in table.times), None)
    if axis is None or table.rows():
        return []
    findings = []
    for column in table.times:
        points = [
            (size, time)
            for line in table.lines
            if (size := line.value(axis)) and (time := table.time_ms(line, column)) is not None
        ]
        if not points or max(points)[0] < GROWTH * min(points)[0]:
            continue
        times = [time for _, time in points]
        if max(times) < FLAT * min(times):
            sentence = (
                f"{column} stays between {min(times):g} and {max(times):g} while {axis} grows from "
                f"{min(points)[0]:g} to {max(points)[0]:g}: it measures a fixed cost, not the work"
            )
            findings.append(Finding("flat", Effect.INCONCLUSIVE, sentence))
    return findings

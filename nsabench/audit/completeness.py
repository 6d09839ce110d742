"""Rows that stand for a measurement that was not made."""

from __future__ import annotations

from collections.abc import Iterator

from nsabench.audit.table import Line, Table
from nsabench.checks import Effect, Finding

CHECK = "completeness"
FAILED = ("fail", "error", "crash", "timeout", "oom", "nan", "inf")


def check(table: Table) -> list[Finding]:
    """A finding a failed or incomplete row; one more when no row was measured at all."""
    found = list(_failed(table))
    if table.candidate and len(found) == len(table.lines):
        sentence = f"none of its {len(table.lines)} rows was measured: it decides nothing"
        found.append(Finding(CHECK, Effect.INVALID, sentence))
    return found


def _failed(table: Table) -> Iterator[Finding]:
    for line in table.lines:
        missing = [c for c in table.times if table.time_ms(line, c) is None]
        said = _says(table, line)
        if not missing and not said:
            continue
        what = [f"{c} is {line.cells[c] or 'empty'}" for c in missing]
        if said:
            what.append(f"its status is {said}")
        sentence = f"line {line.number} holds no measurement ({', '.join(what)})"
        speedup = line.value(table.others.get("speedup"))
        if speedup is not None:
            sentence += f", yet it stands in the table with a speed-up of {speedup:g}"
        yield Finding(CHECK, Effect.INVALID, sentence, table.label(line))


def _says(table: Table, line: Line) -> str:
    status = line.cells.get(table.others.get("status", ""), "")
    return status if any(word in status.lower() for word in FAILED) else ""

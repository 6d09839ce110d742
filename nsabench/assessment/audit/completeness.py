"""Rows that stand for a measurement that was not made."""

from __future__ import annotations

import re
from collections.abc import Iterator

from nsabench.assessment.audit.table import Line, Table
from nsabench.assessment.checks import Effect, Finding

CHECK = "completeness"
FAILED = re.compile(r"fail|error|crash|timeout|timed out|out of memory|\b(oom|nan|inf)\b", re.I)


def check(table: Table) -> list[Finding]:
    """A finding a failed or incomplete row; one more when no row was measured at all."""
    findings = list(_failed(table))
    if table.candidate and len(findings) == len(table.lines):
        sentence = f"none of its {len(table.lines)} rows was measured: it decides nothing"
        findings.append(Finding(CHECK, Effect.INVALID, sentence))
    return [*findings, *_without_sizes(table)]


def _without_sizes(table: Table) -> Iterator[Finding]:
    """Rows that no check looks at, in a table whose other rows give their sizes."""
    sized = [line for line in table.lines if table.shape(line) is not None]
    if not sized:
        return
    for line in table.lines:
        if line not in sized and not _says(table, line):
            cells = ", ".join(
                f"{axis} is {line.cells[c] or 'empty'}" for axis, c in table.sizes.items()
            )
            sentence = f"line {line.number} gives no sizes of a case ({cells}): it was not checked"
            yield Finding(CHECK, Effect.INCONCLUSIVE, sentence, table.label(line))


def _failed(table: Table) -> Iterator[Finding]:
    for line in table.lines:
        missing = [c for c in table.times if table.time_ms(line, c) is None]
        status = _says(table, line)
        if not missing and not status:
            continue
        what = [f"{c} is {line.cells[c] or 'empty'}" for c in missing]
        if status:
            what.append(f"its status is {status}")
        sentence = f"line {line.number} holds no measurement ({', '.join(what)})"
        speedup = line.value(table.others.get("speedup"))
        if speedup is not None:
            sentence += f", yet it stands in the table with a speed-up of {speedup:g}"
        yield Finding(CHECK, Effect.INVALID, sentence, table.label(line))


def _says(table: Table, line: Line) -> str:
    status = table.cell(line, "status")
    return status if FAILED.search(status) else ""

"""Checks that only apply to a table from elsewhere.

They find rows that were not measured or are there twice, times that no launch can take, and times
that do not follow the size. They also find speed-ups that do not follow from the times.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from nsabench.checks import Effect, Finding
from nsabench.model.vocabulary import Role
from nsabench.verdicts.audit.table import Line, Table, Times

FAILED = re.compile(r"fail|error|crash|timeout|timed out|out of memory|\b(oom|nan|inf)\b", re.I)
LEAST_MS = 5e-4  # an empty kernel takes longer
TIME_GROWTH = 4.0
FLAT = 1.2  # largest over smallest time


def check(table: Table) -> Iterator[Finding]:
    failed = list(_check_measured(table))
    yield from failed
    if len({finding.case_id for finding in failed}) == len(table.lines):
        sentence = f"none of its {len(table.lines)} rows was measured: it decides nothing"
        yield Finding("completeness", Effect.INVALID, sentence)
    yield from _check_duplicates(table)
    yield from _check_sizes(table)
    yield from _check_launches(table)
    yield from _check_speedups(table)
    yield from _check_growth(table)


def _check_measured(table: Table) -> Iterator[Finding]:
    for line in table.lines:
        used = [t for t in table.times if t.role is not None and t.is_in(line)]
        what = [f"{t.column} is {line.cells[t.column] or 'empty'}" for t in used if not t.ms(line)]
        status = table.cell(line, "status")
        if FAILED.search(status):
            what.append(f"its status is {status}")
        if what:
            sentence = f"line {line.number} holds no measurement ({', '.join(what)})"
            speedup = line.value(table.others.get("speedup"))
            if speedup is not None:
                sentence += f", yet it stands in the table with a speed-up of {speedup:g}"
            yield Finding("completeness", Effect.INVALID, sentence, table.label(line))


def _check_duplicates(table: Table) -> Iterator[Finding]:
    counts = Counter((table.label(line), times.implementation) for line, times in table.measured())
    for key, count in counts.items():
        if count > 1:
            yield Finding("duplicates", Effect.INVALID, f"it is there {count} times", *key)


def _check_sizes(table: Table) -> Iterator[Finding]:
    """Find rows without sizes in a table whose other rows have them: no check sees such a row."""
    unsized = [line for line in table.lines if table.shape(line) is None]
    if len(unsized) == len(table.lines):
        return
    for line in unsized:
        cells = ", ".join(
            f"{axis} is {line.cells[c] or 'empty'}" for axis, c in table.sizes.items()
        )
        sentence = f"line {line.number} gives no sizes of a case ({cells}): it was not checked"
        yield Finding("completeness", Effect.INCONCLUSIVE, sentence, table.label(line))


def _check_launches(table: Table) -> Iterator[Finding]:
    for line, times in table.measured():
        time = times.ms(line)
        if time is not None and time < LEAST_MS:
            sentence = (
                f"{line.cells[times.column]} in {times.column} is {time * 1e3:.3g} µs, and the "
                f"launch of an empty kernel takes {LEAST_MS * 1e3:g} µs or more: is the unit right?"
            )
            key = table.label(line), times.implementation
            yield Finding("launch", Effect.IMPLAUSIBLE, sentence, *key)


def _check_speedups(table: Table) -> Iterator[Finding]:
    column, candidates = table.others.get("speedup"), table.of_role(Role.CANDIDATE)
    if not column:
        return
    for line in table.lines:
        stated = line.value(column)
        mine = next(((line, t) for t in candidates if t.is_in(line) and t.ms(line)), None)
        timed = [(time, at, t) for at, t in _beside(table, line) if (time := t.ms(at))]
        if stated is None or mine is None or not timed:
            continue
        best_ms, at, best = min(timed, key=lambda found: found[0])
        own_ms = mine[1].ms(line) or 0.0
        slack = _round(line, column) / max(abs(stated), 1e-9)
        slack += _round(line, mine[1].column) / own_ms * mine[1].unit_ms
        slack += _round(at, best.column) / best_ms * best.unit_ms
        if abs(stated / (best_ms / own_ms) - 1) > slack + 0.01:
            sentence = (
                f"the stated speed-up of {stated:g} is not that of the stated times: "
                f"{best.implementation} {best_ms:g} ms over {own_ms:g} ms is {best_ms / own_ms:.2f}"
            )
            key = table.label(line), mine[1].implementation
            yield Finding("speedup", Effect.WRONG, sentence, *key)


def _beside(table: Table, line: Line) -> list[tuple[Line, Times]]:
    """Return the baselines that were timed on the case of a line."""
    baselines = table.of_role(Role.BASELINE)
    case = table.label(line)
    lines = [line] if all(not t.named_in for t in baselines) else table.lines
    return [
        (other, times)
        for other in lines
        for times in baselines
        if times.is_in(other) and table.label(other) == case
    ]


def _round(line: Line, column: str) -> float:
    """Return half a unit of the last written digit."""
    digits, _, exponent = line.cells[column].strip().lower().partition("e")
    decimals = len(digits.partition(".")[2])
    return float(0.5 * 10.0 ** (int(exponent or 0) - decimals))


def _check_growth(table: Table) -> Iterator[Finding]:
    """Find times that stay flat while the first number of each line grows.

    If the rows give their shapes, the work is known, and the other checks apply instead.
    """
    if table.records():
        return
    axis = next(iter(table.lines[0].cells))
    for times in table.times:
        points = [
            (size, time)
            for line in table.lines
            if times.is_in(line) and (size := line.value(axis)) and (time := times.ms(line))
        ]
        if not points or max(points)[0] < TIME_GROWTH * min(points)[0]:
            continue
        taken = [time for _, time in points]
        if max(taken) < FLAT * min(taken):
            sentence = (
                f"{times.implementation} stays between {min(taken):g} and {max(taken):g} ms while "
                f"{axis} grows from {min(points)[0]:g} to {max(points)[0]:g}: it measures a fixed "
                f"cost, not the work"
            )
            yield Finding("flat", Effect.INCONCLUSIVE, sentence)

"""Checks that only apply to a table from elsewhere.

They find rows that were not measured, branches of a decode step that cost as much as the step, and
counts or times that do not follow the size. They also find speed-ups that do not follow from the
times, or that a caller in Python does not see.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from nsabench.checks import Effect, Finding
from nsabench.checks.host import MORE
from nsabench.model.vocabulary import Mode
from nsabench.verdicts.audit.table import Line, Table, name_of

FAILED = re.compile(r"fail|error|crash|timeout|timed out|out of memory|\b(oom|nan|inf)\b", re.I)
TOTALS = ("total", "all", "step")
AS_MUCH_AS = 0.9  # of the total: a branch that takes more has run the other branches
COUNT_GROWTH = 2.0
TIME_GROWTH = 4.0
FLAT = 1.2  # largest over smallest time


def check(table: Table) -> Iterator[Finding]:
    failed = list(_check_measured(table))
    yield from failed
    if table.candidate and len(failed) == len(table.lines):
        sentence = f"none of its {len(table.lines)} rows was measured: it decides nothing"
        yield Finding("completeness", Effect.INVALID, sentence)
    yield from _check_sizes(table)
    yield from _check_speedups(table)
    yield from _check_hosts(table)
    yield from _check_branches(table)
    yield from _check_counts(table)
    yield from _check_growth(table)


def _check_measured(table: Table) -> Iterator[Finding]:
    for line in table.lines:
        missing = [c for c in table.times if table.time_ms(line, c) is None]
        status = _failure(table, line)
        if not missing and not status:
            continue
        what = [f"{c} is {line.cells[c] or 'empty'}" for c in missing]
        if status:
            what.append(f"its status is {status}")
        sentence = f"line {line.number} holds no measurement ({', '.join(what)})"
        speedup = line.value(table.others.get("speedup"))
        if speedup is not None:
            sentence += f", yet it stands in the table with a speed-up of {speedup:g}"
        yield Finding("completeness", Effect.INVALID, sentence, table.label(line))


def _failure(table: Table, line: Line) -> str:
    status = table.cell(line, "status")
    return status if FAILED.search(status) else ""


def _check_sizes(table: Table) -> Iterator[Finding]:
    """Find rows without sizes in a table whose other rows have them: no check sees such a row."""
    unsized = [line for line in table.lines if table.shape(line) is None]
    if len(unsized) == len(table.lines):
        return
    for line in unsized:
        if not _failure(table, line):
            cells = ", ".join(
                f"{axis} is {line.cells[c] or 'empty'}" for axis, c in table.sizes.items()
            )
            sentence = f"line {line.number} gives no sizes of a case ({cells}): it was not checked"
            yield Finding("completeness", Effect.INCONCLUSIVE, sentence, table.label(line))


def _check_speedups(table: Table) -> Iterator[Finding]:
    column, candidate = table.others.get("speedup"), table.candidate
    if not column or not candidate:
        return
    for line in table.lines:
        stated, mine = line.value(column), table.time_ms(line, candidate)
        timed = _baselines(table, line)
        if stated is None or mine is None or not timed:
            continue
        best, baseline = min(timed)
        slack = _rounding(line, column) / max(stated, 1e-9)
        slack += _rounding(line, candidate) / mine * table.times[candidate]
        slack += _rounding(line, baseline) / best * table.times[baseline]
        if abs(stated / (best / mine) - 1) > slack + 0.01:
            sentence = (
                f"the stated speed-up of {stated:g} is not that of the stated times: "
                f"{baseline} {best:g} ms over {candidate} {mine:g} ms is {best / mine:.2f}"
            )
            yield Finding("speedup", Effect.WRONG, sentence, table.label(line), candidate)


def _baselines(table: Table, line: Line) -> list[tuple[float, str]]:
    return [(time, b) for b in table.baselines if (time := table.time_ms(line, b)) is not None]


def _rounding(line: Line, column: str) -> float:
    """Return half a unit of the last written digit."""
    digits, _, exponent = line.cells[column].strip().lower().partition("e")
    decimals = len(digits.partition(".")[2])
    return float(0.5 * 10.0 ** (int(exponent or 0) - decimals))


def _check_hosts(table: Table) -> Iterator[Finding]:
    """Find speed-ups over 1 of a candidate that is bound by its host.

    A queued call takes the longer of its device time and its host time. The table may give host
    times (`ours_host_us`, `host_us`) or launches (`ours_launches`, `launches`). Replays of a graph
    have no such host.
    """
    candidate = table.candidate
    if not candidate:
        return
    for line in table.lines:
        mine, host = table.time_ms(line, candidate), _host_ms(table, line, candidate)
        timed = _baselines(table, line)
        if mine is None or host is None or not timed or table.mode(line) is Mode.GRAPH:
            continue
        best_ms, best = min(timed)
        if host <= MORE * mine or best_ms <= mine:
            continue
        theirs = _host_ms(table, line, best, own=True)
        seen = "what its baseline takes from there is not said"
        effect = Effect.INCONCLUSIVE
        if theirs is not None:
            ratio = max(best_ms, theirs) / max(mine, host)
            seen = f"there it is {ratio:.2f} times as fast as {name_of(best)}"
            effect = Effect.INCONCLUSIVE if ratio < 1 else Effect.NOTE
        sentence = (
            f"{best_ms / mine:.2f} is the ratio of device times, and the call is bound by its "
            f"host: {host * 1e3:.3g} µs of host for {mine * 1e3:.3g} µs of work. From Python, one "
            f"behind the other, it takes {host * 1e3:.3g} µs at least; {seen}"
        )
        yield Finding("host", effect, sentence, table.label(line), name_of(candidate))


def _host_ms(table: Table, line: Line, column: str, *, own: bool = False) -> float | None:
    """Return how long a call holds its host at least.

    own: ignore a column that does not name an implementation.
    """
    names = (name_of(column).lower(), *(() if own else ("",)))
    for columns in table.hosts:
        for name in names:
            stated, unit = columns.get(name, (None, 0.0))
            value = line.value(stated)
            if value is not None and value > 0:
                return value * unit
    return None


def _check_branches(table: Table) -> Iterator[Finding]:
    """Find decode steps whose branches each cost as much as the step."""
    total = next((c for c in table.times if name_of(c).lower() in TOTALS), None)
    parts = [c for c in table.times if c != total]
    if total is None or len(parts) < 2:
        return
    for line in table.lines:
        whole = table.time_ms(line, total)
        times = {c: t for c in parts if (t := table.time_ms(line, c)) is not None}
        if whole is None or len(times) < 2 or min(times.values()) < AS_MUCH_AS * whole:
            continue
        names = ", ".join(f"{name_of(c)} {t:g}" for c, t in times.items())
        sentence = (
            f"each branch costs as much as the total of {whole:g} ms ({names}; together "
            f"{sum(times.values()):g}): whatever was switched off ran all the same"
        )
        yield Finding("decode", Effect.IMPLAUSIBLE, sentence, table.label(line))


def _check_counts(table: Table) -> Iterator[Finding]:
    """Find counted reads that never change, or are not as expected."""
    axis = table.first_size
    for column in table.columns:
        if not column.endswith("_actual") or axis is None:
            continue
        counted = [(line, a) for line in table.lines if (a := line.value(column)) is not None]
        values = {a for _, a in counted}
        sizes = [v for line, _ in counted if (v := line.value(axis))]
        expected = f"{column.removesuffix('_actual')}_expected"
        if len(values) == 1 and len(sizes) > 1 and max(sizes) >= COUNT_GROWTH * min(sizes):
            [value] = values
            sentence = (
                f"{column} is {value:g} in every row while {axis} grows from {min(sizes):g} "
                f"to {max(sizes):g}: it was not counted, or counts something else"
            )
            yield Finding("decode", Effect.IMPLAUSIBLE, sentence)
        off = [
            (line, a, e)
            for line, a in counted
            if (e := line.value(expected)) is not None and a != e
        ]
        if off:
            line, a, e = max(off, key=lambda o: abs(o[1] / o[2] - 1) if o[2] else 0)
            sentence = (
                f"{column} differs from {expected} in {len(off)} of {len(table.lines)} rows, "
                f"most at {table.label(line)}: {a:g} against {e:g}"
            )
            yield Finding("decode", Effect.WRONG, sentence)


def _check_growth(table: Table) -> Iterator[Finding]:
    """Find time columns that stay flat while the first size grows.

    If the rows give their shapes, the work is known, and the other checks apply instead.
    """
    axis = table.first_size
    if axis is None or table.records():
        return
    for column in table.times:
        points = [
            (size, time)
            for line in table.lines
            if (size := line.value(axis)) and (time := table.time_ms(line, column)) is not None
        ]
        if not points or max(points)[0] < TIME_GROWTH * min(points)[0]:
            continue
        times = [time for _, time in points]
        if max(times) < FLAT * min(times):
            sentence = (
                f"{column} stays between {min(times):g} and {max(times):g} while {axis} grows from "
                f"{min(points)[0]:g} to {max(points)[0]:g}: it measures a fixed cost, not the work"
            )
            yield Finding("flat", Effect.INCONCLUSIVE, sentence)

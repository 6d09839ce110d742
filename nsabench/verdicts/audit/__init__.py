"""Audit a table that others measured: are its times possible, and what explains its errors?"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path

from nsabench.checks import DeviceLimits, Effect, Finding, by_gravity, parity, run_checks
from nsabench.machine import datasheet
from nsabench.model.vocabulary import Role
from nsabench.verdicts.audit import explanation
from nsabench.verdicts.audit.table import ForeignRow, ForeignTable, Times, read_table

__all__ = ["audit_csv"]

FAILED = re.compile(r"fail|error|crash|timeout|timed out|out of memory|\b(oom|nan|inf)\b", re.I)
LEAST_MS = 5e-4  # an empty kernel takes longer
TIME_GROWTH = 4.0
FLAT = 1.2  # times are flat if the largest is less than this multiple of the smallest


def audit_csv(
    path: Path,
    gpu: str | None = None,
    *,
    candidates: Collection[str] = (),
    baselines: Collection[str] = (),
    unit: str = "",
) -> list[Finding]:
    """Return how a table was read, and what is wrong with it: the cause first, if one is known.

    `gpu` is a device of `machine/datasheet.py`. The `case_id` of a finding describes the row.
    """
    limits = DeviceLimits.from_sheet(datasheet.find(gpu)) if gpu else DeviceLimits()
    table = read_table(path, candidates, baselines, unit)
    records = table.records()
    names = " and ".join(times.implementation for times in table.with_role(Role.BASELINE))
    found, _ = run_checks(records, limits)
    # A table has no controls, so every check is unproven.
    findings = [_accuse_both(f, names) for f in found if f.effect is not Effect.UNPROVEN]
    checks = (_check_measured, _check_duplicates, _check_sizes, _check_launches)
    for check in (*checks, _check_speedups, _check_growth):
        findings += check(table)
    findings = by_gravity([*findings, *explanation.check(records, findings)])
    findings.sort(key=lambda f: f.check != explanation.CHECK or f.effect is not Effect.WRONG)
    return [*_describe_reading(table, gpu), *findings]


def _describe_reading(table: ForeignTable, gpu: str | None) -> Iterator[Finding]:
    parts = [
        f"{times.column}{f' of {times.implementation}' if times.named_in else ''} is a {times.role}"
        for times in table.times
        if times.role is not None
    ]
    for title, found in (("sizes", table.sizes), ("also read", table.others)):
        columns = [key if key == c else f"{key} from {c}" for key, c in found.items()]
        parts += [f"{title}: {', '.join(columns)}"] if columns else []
    used = {*(t.column for t in table.times if t.role), *(t.named_in for t in table.times)}
    used |= {*table.sizes.values(), *table.others.values(), *table.settings}
    parts += [f"settings of a case: {', '.join(table.settings)}"] if table.settings else []
    unused = [column for column in table.lines[0].cells if column not in used]
    parts += [f"not used: {', '.join(unused)}"] if unused else []
    yield Finding("columns", Effect.NOTE, "; ".join(parts))
    lacking = []
    if not table.with_role(Role.BASELINE):
        lacking.append("speed-ups, since it has no baseline (--baseline NAME)")
    if "mae" not in table.others:
        lacking.append("errors, since no column has them")
    if not table.records():
        missing = ", ".join(axis for axis in ("N", "H", "D", "L") if axis not in table.sizes)
        lacking.append(f"limits and growth, since sizes are missing in all lines ({missing})")
    elif gpu is None:
        lacking.append("physical limits, since no device is named (--gpu NAME)")
    if lacking:
        yield Finding("columns", Effect.NOTE, f"not checked: {'; '.join(lacking)}")


def _accuse_both(finding: Finding, baselines: str) -> Finding:
    """Let a finding of `parity` accuse both sides: a table does not show which one is wrong."""
    if finding.check != "parity":
        return finding
    sentence = finding.sentence.replace(parity.ORACLE, baselines)
    sentence = f"{finding.implementation}: {sentence}; one of them is wrong"
    return replace(finding, implementation="", sentence=sentence)


def _check_measured(table: ForeignTable) -> Iterator[Finding]:
    failed = set()
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
                sentence += f", yet it states a speed-up of {speedup:g}"
            failed.add(table.label(line))
            yield Finding("completeness", Effect.INVALID, sentence, table.label(line))
    if len(failed) == len(table.lines):
        sentence = f"none of the {len(table.lines)} rows was measured: the table decides nothing"
        yield Finding("completeness", Effect.INVALID, sentence)


def _check_duplicates(table: ForeignTable) -> Iterator[Finding]:
    counts = Counter((table.label(line), times.implementation) for line, times in table.measured())
    for key, count in counts.items():
        if count > 1:
            yield Finding("duplicates", Effect.INVALID, f"the table has it {count} times", *key)


def _check_sizes(table: ForeignTable) -> Iterator[Finding]:
    unsized = [line for line in table.lines if table.shape(line) is None]
    if len(unsized) == len(table.lines):
        return
    for line in unsized:
        cells = ", ".join(
            f"{axis} is {line.cells[c] or 'empty'}" for axis, c in table.sizes.items()
        )
        sentence = f"line {line.number} does not give all sizes ({cells}), so it was not checked"
        yield Finding("completeness", Effect.INCONCLUSIVE, sentence, table.label(line))


def _check_launches(table: ForeignTable) -> Iterator[Finding]:
    for line, times in table.measured():
        time = times.ms(line)
        if time is not None and time < LEAST_MS:
            sentence = (
                f"{line.cells[times.column]} in {times.column} is {time * 1e3:.3g} µs, and the "
                f"launch of an empty kernel takes {LEAST_MS * 1e3:g} µs or more: is the unit right?"
            )
            key = table.label(line), times.implementation
            yield Finding("launch", Effect.IMPLAUSIBLE, sentence, *key)


def _check_speedups(table: ForeignTable) -> Iterator[Finding]:
    column, candidates = table.others.get("speedup"), table.with_role(Role.CANDIDATE)
    if not column:
        return
    for line in table.lines:
        stated = line.value(column)
        mine = next((t for t in candidates if t.is_in(line) and t.ms(line)), None)
        timed = [(time, at, t) for at, t in _list_baselines(table, line) if (time := t.ms(at))]
        if stated is None or mine is None or not timed:
            continue
        best_ms, at, best = min(timed, key=lambda found: found[0])
        own_ms = mine.ms(line) or 0.0
        slack = _round_off(line, column) / max(abs(stated), 1e-9)
        slack += _round_off(line, mine.column) / own_ms * mine.unit_ms
        slack += _round_off(at, best.column) / best_ms * best.unit_ms
        if abs(stated / (best_ms / own_ms) - 1) > slack + 0.01:
            sentence = (
                f"the stated speed-up of {stated:g} is not that of the stated times: "
                f"{best.implementation} {best_ms:g} ms over {own_ms:g} ms is {best_ms / own_ms:.2f}"
            )
            key = table.label(line), mine.implementation
            yield Finding("speedup", Effect.WRONG, sentence, *key)


def _list_baselines(table: ForeignTable, line: ForeignRow) -> list[tuple[ForeignRow, Times]]:
    case, is_wide = table.label(line), not table.times[0].named_in
    return [
        (other, times)
        for other in ([line] if is_wide else table.lines)
        for times in table.with_role(Role.BASELINE)
        if times.is_in(other) and table.label(other) == case
    ]


def _round_off(line: ForeignRow, column: str) -> float:
    digits, _, exponent = line.cells[column].strip().lower().partition("e")
    decimals = len(digits.partition(".")[2])
    return float(0.5 * 10.0 ** (int(exponent or 0) - decimals))


def _check_growth(table: ForeignTable) -> Iterator[Finding]:
    if table.records():  # the work is known, and the other checks apply
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

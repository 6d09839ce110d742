"""Audit a table of timings from elsewhere: are the numbers possible, and what explains them?"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path

from nsabench.checks import DeviceLimits, Effect, Finding, parity, run_checks
from nsabench.machine import datasheet
from nsabench.model.vocabulary import Role
from nsabench.verdicts.audit import checks, explanation, table
from nsabench.verdicts.audit.table import Table

__all__ = ["audit_csv"]


def audit_csv(
    path: Path,
    gpu: str | None = None,
    *,
    candidates: Collection[str] = (),
    baselines: Collection[str] = (),
    unit: str = "",
) -> list[Finding]:
    """Return how a table was read, and what is wrong with it: the cause first, if one is known.

    gpu: a device in the data-sheet table; without it no physical limit applies. `table.read` takes
    the other arguments. The `case_id` of a finding is the row in words. Raises `UsageError` as
    `table.read` does, and for an unknown device.
    """
    limits = DeviceLimits.from_sheet(datasheet.find(gpu)) if gpu else DeviceLimits()
    read = table.read(path, candidates, baselines, unit)
    rows = read.records()
    names = " and ".join(times.implementation for times in read.of_role(Role.BASELINE))
    # A table has no controls, so every check is unproven.
    found = [f for f in run_checks(rows, limits)[0] if f.effect is not Effect.UNPROVEN]
    findings = [_accuse_both(f, names) for f in found]
    findings += checks.check(read)
    findings += explanation.check(rows, findings)
    gravity = list(Effect)
    findings.sort(key=lambda f: (not _is_cause(f), gravity.index(f.effect)))
    return [*_describe_reading(read, gpu), *findings]


def _describe_reading(read: Table, gpu: str | None) -> Iterator[Finding]:
    """Say what was taken for what, and what could not be checked."""
    parts = [
        f"{times.column}{f' of {times.implementation}' if times.named_in else ''} is a {times.role}"
        for times in read.times
        if times.role is not None
    ]
    for title, found in (("sizes", read.sizes), ("also read", read.others)):
        columns = [key if key == c else f"{key} from {c}" for key, c in found.items()]
        parts += [f"{title}: {', '.join(columns)}"] if columns else []
    used = {*(t.column for t in read.times if t.role), *(t.named_in for t in read.times)}
    used |= {*read.sizes.values(), *read.others.values(), *read.settings}
    parts += [f"settings of a case: {', '.join(read.settings)}"] if read.settings else []
    unused = [column for column in read.lines[0].cells if column not in used]
    parts += [f"not used: {', '.join(unused)}"] if unused else []
    yield Finding("columns", Effect.NOTE, "; ".join(parts))
    lacking = []
    if not read.of_role(Role.BASELINE):
        lacking.append("speed-ups, since it has no baseline (--baseline NAME)")
    if "mae" not in read.others:
        lacking.append("errors, since no column has them")
    if not read.records():
        missing = ", ".join(axis for axis in ("N", "H", "D", "L") if axis not in read.sizes)
        lacking.append(f"limits and growth, since no line gives all sizes ({missing})")
    elif gpu is None:
        lacking.append("physical limits, since no device is named (--gpu NAME)")
    if lacking:
        yield Finding("columns", Effect.NOTE, f"not checked: {'; '.join(lacking)}")


def _is_cause(finding: Finding) -> bool:
    return finding.check == explanation.CHECK and finding.effect is Effect.WRONG


def _accuse_both(finding: Finding, baselines: str) -> Finding:
    """A table says how far two implementations are apart, not which of them is wrong."""
    if finding.check != "parity":
        return finding
    sentence = finding.sentence.replace(parity.ORACLE, baselines)
    sentence = f"{finding.implementation}: {sentence}; one of them is wrong"
    return replace(finding, implementation="", sentence=sentence)

"""Audit a table of timings from elsewhere: are the numbers possible, and what explains them?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from nsabench.checks import Effect, Finding, Limits, parity, run_all
from nsabench.machine import datasheet
from nsabench.verdicts.audit import checks, explanation, table

__all__ = ["audit_csv"]


def audit_csv(path: Path, gpu: str | None = None) -> list[Finding]:
    """Return what is wrong with a table: the cause first, if one is known, then by gravity.

    gpu: a device in the data-sheet table; without it no physical limit applies. The `case_id` of a
    finding is the row in words. Raises `UsageError` for a file that is not a table of timings, and
    for an unknown device.
    """
    limits = Limits.of_sheet(datasheet.find(gpu)) if gpu else Limits()
    read = table.read(path)
    rows = read.records()
    baselines = " and ".join(table.name_of(column) for column in read.baselines)
    # A table has no controls, so every check is unproven.
    found = [f for f in run_all(rows, limits) if f.effect is not Effect.UNPROVEN]
    findings = [_accuse_both(f, baselines) for f in found]
    findings += checks.check(read)
    findings += explanation.check(rows, findings)
    gravity = list(Effect)
    return sorted(findings, key=lambda f: (not _is_cause(f), gravity.index(f.effect)))


def _is_cause(finding: Finding) -> bool:
    return finding.check == explanation.CHECK and finding.effect is Effect.WRONG


def _accuse_both(finding: Finding, baselines: str) -> Finding:
    """A table says how far two implementations are apart, not which of them is wrong."""
    if finding.check != "parity":
        return finding
    sentence = finding.sentence.replace(parity.ORACLE, baselines)
    sentence = f"{finding.implementation}: {sentence}; one of them is wrong"
    return replace(finding, implementation="", sentence=sentence)

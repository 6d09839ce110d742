"""Auditing a table of timings from elsewhere: are the numbers possible, and what explains them?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from nsabench.checks import Effect, Finding, Limits, parity, run_all
from nsabench.machine import datasheet
from nsabench.verdicts.audit import checks, explanation, table

__all__ = ["audit_csv"]


def audit_csv(path: Path, gpu: str | None = None) -> list[Finding]:
    """Return what is wrong with the table: the cause first, where one is known, then the gravest.
    `case_id` is the row in words.

    gpu: the name of a device in the data-sheet table; without it nothing is held to physics.
    Raises `UsageError` when the file is no table of timings or the device is not known.
    """
    limits = Limits.of_sheet(datasheet.find(gpu)) if gpu else Limits()
    read = table.read(path)
    rows = read.records()
    # A table has no controls, and need not be told so.
    against = " and ".join(table.name_of(column) for column in read.baselines)
    findings = [
        _of_the_pair(f, against) for f in run_all(rows, limits) if f.effect is not Effect.UNPROVEN
    ]
    findings += checks.check(read)
    findings += explanation.check(rows, findings)
    gravity = list(Effect)
    return sorted(findings, key=lambda f: (not _is_cause(f), gravity.index(f.effect)))


def _is_cause(finding: Finding) -> bool:
    """Whether it says which mistake explains the others."""
    return finding.check == explanation.CHECK and finding.effect is Effect.WRONG


def _of_the_pair(finding: Finding, against: str) -> Finding:
    """A table says how far two implementations are apart, not which of them is right."""
    if finding.check != "parity":
        return finding
    sentence = finding.sentence.replace(parity.ORACLE, against)
    sentence = f"{finding.implementation}: {sentence}; one of them is wrong"
    return replace(finding, implementation="", sentence=sentence)

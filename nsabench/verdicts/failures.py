"""What failed in a finished run: lines, which set the exit code, and findings."""

from __future__ import annotations

from nsabench import labels
from nsabench.checks.controls import CHECK
from nsabench.checks.finding import Effect, Finding
from nsabench.model.record import Record
from nsabench.model.vocabulary import BENIGN, Catch, Role, Status
from nsabench.verdicts.records import STATUS_OF
from nsabench.verdicts.results import Results


def failures(results: Results) -> list[str]:
    """Return a line for each failure. Controls fail if they are not caught."""
    # Findings about the whole run: no control tested a check.
    lines = [
        f.sentence
        for f in results.findings
        if f.check == CHECK and f.effect is Effect.INVALID and not f.implementation
    ]
    for record in results.records:
        if record.caught is Catch.MISSED:
            lines.append(f"control {_name_with_case(record)} was not caught by {record.caught_by}")
        elif _has_failed(record):
            lines.append(f"{_name_with_case(record)}: {record.status}: {record.reason}")
    return lines


def _name_with_case(record: Record) -> str:
    return f"{record.implementation} on {labels.named(record)}"


def unproven(results: Results) -> list[str]:
    return [f.sentence for f in results.findings if f.effect is Effect.UNPROVEN]


def found_while_measuring(results: Results) -> list[Finding]:
    """Return the failures of candidates and baselines that the worker found, not a check."""
    by_checks = {(f.case_id, f.implementation) for f in results.findings if f.effect in STATUS_OF}
    findings = []
    for record in results.records:
        if _has_failed(record) and record.key not in by_checks:
            wrong = record.status is Status.WRONG
            check, effect = ("parity", Effect.WRONG) if wrong else ("outcome", Effect.INVALID)
            sentence = f"{record.status}: {record.reason}"
            findings.append(Finding(check, effect, sentence, *record.key))
    return findings


def _has_failed(record: Record) -> bool:
    return record.role is not Role.CONTROL and record.status not in BENIGN

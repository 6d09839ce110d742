"""What failed in a finished run: as lines, by which it has an exit code, and as findings."""

from __future__ import annotations

from nsabench import labels
from nsabench.checks.controls import CHECK
from nsabench.checks.finding import Effect, Finding
from nsabench.model.record import Record
from nsabench.model.vocabulary import BENIGN, Catch, Role, Status
from nsabench.verdicts.records import STATUS_OF
from nsabench.verdicts.results import Results


def failures(results: Results) -> list[str]:
    """One line a failure. A control that is caught has done its work and is none."""
    # A check that no control put to the proof: a sentence about the run, not about a record.
    lines = [
        f.sentence
        for f in results.findings
        if f.check == CHECK and f.effect is Effect.INVALID and not f.implementation
    ]
    for record in results.records:
        if record.caught is Catch.MISSED:
            lines.append(f"control {_who(record)} was not caught by {record.caught_by}")
        elif _failed(record):
            lines.append(f"{_who(record)}: {record.status}: {record.reason}")
    return lines


def _who(record: Record) -> str:
    return f"{record.implementation} on {labels.named(record)}"


def unproven(results: Results) -> list[str]:
    """What is said of verdicts behind which a check stands that no control showed to work."""
    return [f.sentence for f in results.findings if f.effect is Effect.UNPROVEN]


def found_while_measuring(results: Results) -> list[Finding]:
    """Failures of candidates and baselines that no check found, since the worker did."""
    by_checks = {(f.case_id, f.implementation) for f in results.findings if f.effect in STATUS_OF}
    findings = []
    for record in results.records:
        if _failed(record) and record.key not in by_checks:
            wrong = record.status is Status.WRONG
            check, effect = ("parity", Effect.WRONG) if wrong else ("outcome", Effect.INVALID)
            sentence = f"{record.status}: {record.reason}"
            findings.append(Finding(check, effect, sentence, *record.key))
    return findings


def _failed(record: Record) -> bool:
    return record.role is not Role.CONTROL and record.status not in BENIGN

"""What failed in a finished run: as lines, by which it has an exit code, and as findings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nsabench.assessment import labels
from nsabench.assessment.checks.controls import CHECK, Catch
from nsabench.assessment.checks.finding import Effect, Finding
from nsabench.assessment.results import STATUS_OF, Results
from nsabench.model.vocabulary import BENIGN, Role, Status


def failures(results: Results) -> list[str]:
    """One line a failure. A control that is caught has done its work and is none."""
    # A check that no control put to the proof: a sentence about the run, not about a record.
    lines = [
        f.sentence
        for f in results.findings
        if f.check == CHECK and f.effect is Effect.INVALID and not f.implementation
    ]
    for record in results.records:
        who = f"{record['implementation']} on {labels.named(record)}"
        if record["caught"] == Catch.MISSED:
            lines.append(f"control {who} was not caught by {record['caught_by']}")
        elif _failed(record):
            lines.append(f"{who}: {record['status']}: {record['reason']}")
    return lines


def found_while_measuring(results: Results) -> list[Finding]:
    """Failures of candidates and baselines that no check found, since the worker did."""
    told = {(f.case_id, f.implementation) for f in results.findings if f.effect in STATUS_OF}
    found = []
    for record in results.records:
        key = record["case_id"], record["implementation"]
        if _failed(record) and key not in told:
            wrong = record["status"] == Status.WRONG
            check, effect = ("parity", Effect.WRONG) if wrong else ("outcome", Effect.INVALID)
            sentence = f"{record['status']}: {record['reason']}"
            found.append(Finding(check, effect, sentence, *key))
    return found


def _failed(record: Mapping[str, Any]) -> bool:
    return record["role"] != Role.CONTROL and record["status"] not in BENIGN

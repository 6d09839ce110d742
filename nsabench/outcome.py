"""What failed in a finished run: as lines, by which it has an exit code, and as findings."""

from __future__ import annotations

from nsabench import labels
from nsabench.checks.controls import CHECK, Catch
from nsabench.checks.finding import Effect, Finding
from nsabench.results.assemble import Results
from nsabench.words import BENIGN, Role, Status

PARITY = "parity"
FAILING = (Effect.WRONG, Effect.IMPLAUSIBLE)


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
        if record["role"] == Role.CONTROL:
            if record["caught"] == Catch.MISSED:
                lines.append(f"control {who} was not caught by {record['caught_by']}")
        elif record["status"] not in BENIGN:
            lines.append(f"{who}: {record['status']}: {record['reason']}")
    return lines


def found_while_measuring(results: Results) -> list[Finding]:
    """Failures of candidates and baselines that no check found, since the worker did."""
    told = {(f.case_id, f.implementation) for f in results.findings if f.effect in FAILING}
    return [
        Finding(
            PARITY if r["status"] == Status.WRONG else "outcome",
            Effect.WRONG if r["status"] == Status.WRONG else Effect.INVALID,
            f"{r['status']}: {r['reason']}",
            r["case_id"],
            r["implementation"],
        )
        for r in results.records
        if r["role"] != Role.CONTROL
        and r["status"] not in BENIGN
        and (r["case_id"], r["implementation"]) not in told
    ]

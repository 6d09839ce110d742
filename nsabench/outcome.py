"""What a finished run means as an exit code: did something in it fail?"""

from __future__ import annotations

from nsabench import labels
from nsabench.checks.controls import CHECK, Catch
from nsabench.checks.finding import Effect
from nsabench.results.assemble import Results
from nsabench.words import BENIGN, Role


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

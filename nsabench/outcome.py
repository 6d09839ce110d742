"""What a finished run means as an exit code: did something in it fail?"""

from __future__ import annotations

from nsabench.checks.controls import Catch
from nsabench.results.assemble import Results
from nsabench.words import BENIGN, Role


def failures(results: Results) -> list[str]:
    """One line a failure. A control that is caught has done its work and is none."""
    lines = []
    for record in results.records:
        who = f"{record['implementation']} on {record['case_id']}"
        if record["role"] == Role.CONTROL:
            if record["caught"] == Catch.MISSED:
                lines.append(f"control {who} was not caught by {record['caught_by']}")
        elif record["status"] not in BENIGN:
            lines.append(f"{who}: {record['status']}: {record['reason']}")
    return lines

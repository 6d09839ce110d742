"""Controls: a run decides something only if every implementation that cheats in it was caught.

A control declares the check that is meant to catch it (`caught_by`), and declines by itself, with
`Unsupported`, the cases on which it happens to be right (reading the first 64 keys is no fault
where there are 64). So whatever it does run, it must be caught on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from nsabench.checks.finding import Effect, Finding
from nsabench.checks.row import Row
from nsabench.words import Role, Status

CHECK = "controls"
# The worker's gate turns what this check finds into the status itself.
GATE = "parity"


def judge(rows: Sequence[Row], findings: Sequence[Finding]) -> list[Finding]:
    """Speak about each control once, given what the other checks found in the same rows."""
    by_control: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if row.role is Role.CONTROL:
            by_control[row.implementation].append(row)
    return [f for name, group in by_control.items() for f in _judge(name, group, findings)]


def caught(row: Row, findings: Sequence[Finding]) -> bool | None:
    """Whether the check that is meant for this control caught it here; None: it did not run."""
    if any(_names(f, row) for f in findings):
        return True
    if row.status is Status.WRONG:
        return row.caught_by == GATE
    return False if row.status in (Status.OK, Status.IMPLAUSIBLE) else None


def _names(finding: Finding, row: Row) -> bool:
    return (
        finding.check == row.caught_by
        and finding.case_id == row.case_id
        and finding.implementation == row.implementation
    )


def _judge(name: str, rows: list[Row], findings: Sequence[Finding]) -> Iterator[Finding]:
    by_answer: dict[bool | None, list[Row]] = defaultdict(list)
    for row in rows:
        by_answer[caught(row, findings)].append(row)
    ran = len(by_answer[True]) + len(by_answer[False])
    if by_answer[False]:
        first = by_answer[False][0]
        sentence = (
            f"the check {first.caught_by!r} did not catch the control in "
            f"{len(by_answer[False])} of {ran} cases, first in {first.label}, where its status is "
            f"{first.status}: this run decides nothing"
        )
        yield Finding(CHECK, Effect.INVALID, sentence, implementation=name)
    failed = [r for r in by_answer[None] if r.status not in (Status.UNSUPPORTED, Status.SKIPPED)]
    if failed:
        sentence = (
            f"the control did not get as far as being caught in {len(failed)} cases, first in "
            f"{failed[0].label}: {failed[0].status}: {failed[0].reason}"
        )
        yield Finding(CHECK, Effect.NOTE if ran else Effect.INVALID, sentence, implementation=name)

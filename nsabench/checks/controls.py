"""Controls: a run decides something only if every implementation that cheats in it was caught.

A control declares the check that is meant to catch it (`caught_by`), and declines by itself, with
`Unsupported`, the cases on which it happens to be right (reading the first 64 keys is no fault
where there are 64). So whatever it does run, it must be caught on:

- `parity`: its status is `wrong`, or the check of that name says so;
- `timer`: it is right and aims at the clock; it is defeated if it gained nothing, that is, if it
  is not faster than the best valid baseline, one of which it wraps;
- any other: the check of that name found something in it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from nsabench.checks.baselines import best_baseline
from nsabench.checks.finding import Effect, Finding
from nsabench.checks.row import Row
from nsabench.words import Role, Status, Word

CHECK = "controls"
# A trick on the clock that works makes a time vanish; less than this is noise between two arms.
GAINED = 0.8
# On the host's clock the arms of a busy machine differ several-fold (seen: 2.6); a clock that was
# stopped, which is what the trick there aims at, still shows.
GAINED_ON_HOST = 0.1


class Catch(Word):
    """What became of a control on a case."""

    CAUGHT = "caught", "the check that was meant to catch it did"
    MISSED = "missed", "the check did not catch it: the run is invalid"
    DECLINED = "declined", "it would have been right here, or cannot run on this device"
    UNPROVEN = "unproven", "it failed before that check, or had nothing to be compared with"


def judge(rows: Sequence[Row], findings: Sequence[Finding]) -> list[Finding]:
    """Speak about each control once, given what the other checks found in the same rows."""
    cases: dict[str, list[Row]] = defaultdict(list)
    by_control: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        cases[row.case_id].append(row)
        if row.role is Role.CONTROL:
            by_control[row.implementation].append(row)
    return [
        finding
        for name, own in by_control.items()
        for finding in _judge(name, [(r, catch(r, cases[r.case_id], findings)) for r in own])
    ]


def catch(row: Row, case: Sequence[Row], findings: Sequence[Finding]) -> Catch:
    """What became of this control, given all rows of its case and what the checks found."""
    if row.status in (Status.UNSUPPORTED, Status.SKIPPED):
        return Catch.DECLINED
    if row.status not in (Status.OK, Status.WRONG, Status.IMPLAUSIBLE):
        return Catch.UNPROVEN
    if row.caught_by == "parity":
        found = row.status is Status.WRONG or any(_names(f, row) for f in findings)
        return Catch.CAUGHT if found else Catch.MISSED
    if row.status is Status.WRONG or row.median_ms is None:
        return Catch.UNPROVEN  # another check was there first, or it was never timed
    if row.caught_by == "timer":
        return _gained(row, best_baseline(case))
    if row.caught_by == "baseline" and best_baseline(case) is None:
        return Catch.UNPROVEN
    return Catch.CAUGHT if any(_names(f, row) for f in findings) else Catch.MISSED


def _gained(row: Row, best: Row | None) -> Catch:
    if best is None or not best.median_ms or not row.median_ms:
        return Catch.UNPROVEN
    gained = GAINED if row.median_mcycles is not None else GAINED_ON_HOST
    return Catch.MISSED if row.median_ms < gained * best.median_ms else Catch.CAUGHT


def _names(finding: Finding, row: Row) -> bool:
    return (
        finding.check == row.caught_by
        and finding.case_id == row.case_id
        and finding.implementation == row.implementation
    )


def _judge(name: str, outcomes: Sequence[tuple[Row, Catch]]) -> Iterator[Finding]:
    rows = {c: [row for row, became in outcomes if became is c] for c in Catch}
    ran = len(rows[Catch.CAUGHT]) + len(rows[Catch.MISSED])
    if rows[Catch.MISSED]:
        first = rows[Catch.MISSED][0]
        time = "" if first.median_ms is None else f", {first.median_ms:.3g} ms"
        sentence = (
            f"the check {first.caught_by!r} did not catch the control in "
            f"{len(rows[Catch.MISSED])} of {ran} cases, first in {first.label} "
            f"({first.status}{time}): this run decides nothing"
        )
        yield Finding(CHECK, Effect.INVALID, sentence, implementation=name)
    if rows[Catch.UNPROVEN]:
        first = rows[Catch.UNPROVEN][0]
        why = first.reason or "nothing valid was timed beside it"
        sentence = (
            f"the control did not get as far as being caught in {len(rows[Catch.UNPROVEN])} "
            f"cases, first in {first.label} ({first.status}): {why}"
        )
        yield Finding(CHECK, Effect.NOTE, sentence, implementation=name)

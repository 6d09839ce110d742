"""Controls: a run decides something only if every implementation that cheats in it was caught.

A control declares the check that is meant to catch it (`caught_by`), and declines by itself, with
`Unsupported`, the cases on which it happens to be right (reading the first 64 keys is no fault
where there are 64). So whatever it does run, it must be caught on:

- `parity`: its status is `wrong`, or any check says that its output is (`ordering` sees in the
  samples what a look at the output may come too late for);
- `timer`: it is right and aims at the clock; it is defeated if it gained nothing, that is, if it
  is not faster than the best valid baseline, one of which is the implementation that it wraps;
- any other: the check of that name found something in it. One that aims at being too fast to be
  true (`roofline`) and gained nothing, because its host held it up, has proven nothing.

- `host`: it costs its host far more than the device takes, and the check of that name found it
  bound by its host; where the device takes as long, there is nothing to be found;
- `burst`: what it returned in a burst was found wrong when the clock stopped, and never before;
  where a call is as long as a burst it is called alone.

These two guard the regime `queue`, and one that is missed takes the worth of verdicts there alone.

Where some control failed before its check was reached, another one of that group (op, direction,
mode, one stream or several) must show that the check works: a check that may be broken decides
nothing there. Where all declined or none was there, nothing speaks against the check and nothing
for it: verdicts stand, and the decision says what is behind them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from nsabench import labels
from nsabench.checks import proofs
from nsabench.checks.best_baseline import best_baseline
from nsabench.checks.clocks import median_mcycles
from nsabench.checks.finding import Effect, Finding
from nsabench.checks.host import MORE, worked_ms
from nsabench.checks.proofs import QUEUE, Lack, regime_of
from nsabench.checks.series import by_case
from nsabench.model.record import Record
from nsabench.model.vocabulary import Catch, Regime, Role, Status

CHECK = "controls"
AGAINST_BASELINES = ("timer", "baseline")  # checks that hold a control to what it wraps
# A trick on the clock that works makes a time vanish; less than this is noise between two arms.
GAINED = 0.8
# On the host's clock the arms of a busy machine differ several-fold (seen: 2.6); a clock that was
# stopped, which is what the trick there aims at, still shows.
GAINED_ON_HOST = 0.1
# A call that finds the caches of its CPU cold holds it for up to so many times as long as in a row.
COLD = 2.5
A_BURST_MS = 1.9  # a call that takes as long as that has a burst for itself


def with_catches(records: Sequence[Record], findings: Sequence[Finding]) -> list[Record]:
    """The records, of which each control says what became of it, given what the checks found."""
    cases, of_case = by_case(records), by_case(findings)
    return [
        replace(r, caught=catch(r, cases[r.case_id], of_case.get(r.case_id, [])))
        if r.role is Role.CONTROL
        else r
        for r in records
    ]


def judge(records: Sequence[Record]) -> list[Finding]:
    """Speak about each control once, and about each check that no control has put to the proof."""
    by_control: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        if record.role is Role.CONTROL:
            by_control[record.implementation].append(record)
    findings = [f for name, own in by_control.items() for f in _judge(name, own)]
    lacking = proofs.unproven(records)
    for lack in lacking:
        if lack.lack is Lack.STUCK:
            regime = regime_of(lack.check)
            where = f" in the regime {regime}" if regime else ""
            sentence = (
                f"no control of {lack.group} showed that the check {lack.check!r} works: "
                f"{lack.lack.meaning}, so nothing is decided of it{where}"
            )
            findings.append(
                Finding(CHECK, Effect.INVALID, sentence, groups=(lack.group,), regime=regime)
            )
    return findings + [
        Finding(CHECK, Effect.UNPROVEN, sentence, groups=groups)
        for groups, sentence in proofs.by_way(lacking)
    ]


def catch(row: Record, case: Sequence[Record], findings: Sequence[Finding]) -> Catch:
    """What became of this control, given all rows of its case and what the checks found."""
    if row.status in (Status.UNSUPPORTED, Status.SKIPPED):
        return Catch.DECLINED
    if row.status not in (Status.OK, Status.WRONG, Status.IMPLAUSIBLE):
        return Catch.UNPROVEN
    if row.caught_by in QUEUE and row.streams > 1:
        return Catch.DECLINED  # calls at once have no bursts
    if row.caught_by == "burst":
        return Catch.CAUGHT if any(_names(f, row) for f in findings) else _in_a_burst(row)
    if row.caught_by == "parity":
        found = any(f.effect is Effect.WRONG and f.names(row) for f in findings)
        return Catch.CAUGHT if row.status is Status.WRONG or found else Catch.MISSED
    if row.status is Status.WRONG or row.median_ms is None:
        return Catch.UNPROVEN  # another check was there first, or it was never timed
    if row.caught_by in AGAINST_BASELINES:
        wrapped = [r for r in case if not row.wraps or r.implementation == row.wraps]
        if best_baseline(wrapped, alongside=True) is None:
            return Catch.UNPROVEN  # the best of the others may be slower for reasons of its own
    if row.caught_by == "timer":
        return _gained(row, best_baseline(case, alongside=True))
    if any(_names(f, row) for f in findings):
        return Catch.CAUGHT
    if row.caught_by == "host":
        return _bound(row)
    if row.caught_by == "roofline":
        best = best_baseline(case, alongside=True)
        if best is not None and best.median_ms and row.median_ms >= GAINED * best.median_ms:
            return Catch.UNPROVEN  # held up by its host: nothing was too fast to be true
    return Catch.MISSED


def _in_a_burst(record: Record) -> Catch:
    """What became of a control that was not found wrong in a burst: did it play its trick there?"""
    if record.status is not Status.OK or record.median_in(Regime.QUEUE) is None:
        return Catch.UNPROVEN
    alone = max(record.median_ms or 0.0, (record.host_us or 0.0) / 1e3) >= A_BURST_MS
    return Catch.DECLINED if alone else Catch.MISSED


def _bound(record: Record) -> Catch:
    """What became of a control that was not found bound by its host: is it, as far as is known?"""
    work_ms, queued_ms = worked_ms(record), record.median_in(Regime.QUEUE)
    if work_ms is None or queued_ms is None:
        return Catch.UNPROVEN
    if record.host_us is None:  # the device was not held, so only the queue says what a host takes
        hidden = queued_ms <= MORE * work_ms
    else:
        hidden = record.host_us / 1e3 < COLD * MORE * work_ms
    return Catch.DECLINED if hidden else Catch.MISSED


def _gained(record: Record, best: Record | None) -> Catch:
    if best is None or not best.median_ms or not record.median_ms:
        return Catch.UNPROVEN
    gained = GAINED if median_mcycles(record) is not None else GAINED_ON_HOST
    return Catch.MISSED if record.median_ms < gained * best.median_ms else Catch.CAUGHT


def _names(finding: Finding, record: Record) -> bool:
    return finding.check == record.caught_by and finding.names(record)


def _judge(name: str, records: Sequence[Record]) -> Iterator[Finding]:
    by_catch = {c: [r for r in records if r.caught is c] for c in Catch}
    missed, unproven = by_catch[Catch.MISSED], by_catch[Catch.UNPROVEN]
    if missed:
        first = missed[0]
        time = "" if first.median_ms is None else f", {first.median_ms:.3g} ms"
        sentence = (
            f"the check {first.caught_by!r} did not catch the control in {len(missed)} of "
            f"{len(by_catch[Catch.CAUGHT]) + len(missed)} cases, first in {labels.case(first)} "
            f"({first.status}{time}): this run decides nothing"
        )
        regime = regime_of(first.caught_by)
        if regime is not None:
            sentence += f" in the regime {regime}"
        yield Finding(CHECK, Effect.INVALID, sentence, implementation=name, regime=regime)
    if unproven:
        first = unproven[0]
        why = first.reason or "it gained nothing, or nothing valid was timed beside it"
        sentence = (
            f"the control did not get as far as being caught in {len(unproven)} cases, first in "
            f"{labels.case(first)} ({first.status}): {why}"
        )
        yield Finding(CHECK, Effect.NOTE, sentence, implementation=name)

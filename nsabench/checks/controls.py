"""Decide which controls (implementations that cheat on purpose) were caught by their checks.

A control declares the check that must catch it (`caught_by`). It raises `Unsupported` on cases on
which it would be right, and is then declined. If it does not reach that check, it is unproven. On
every other case it must be caught; otherwise it is missed. It is caught by

- `parity` if its status is `wrong`, or if a check such as `ordering` calls its output wrong. A
  control with `needs_order` is unproven if the run could not observe the order of its work.
- `timer` unless its trick on the clock makes it clearly faster than the best valid baseline.
- `host` if the check finds it bound by its host. It is declined if the device hides its host time.
- `burst` if one of its results was wrong when the clock of a burst (calls back to back) stopped. It
  is declined if one call takes as long as a burst, since its burst was then a single call.
- any other check if that check has a finding about it. For `roofline`, a control that is not
  clearly faster than the baseline is unproven.

A missed control of `host` or `burst` invalidates only verdicts about bursts (the regime `queue`).

A caught control proves that its check works for its group (op, direction, mode). Other groups are
timed and compared by other code. A check is unproven in a group in which none of its controls was
caught or missed. If one of these controls was unproven, nothing is decided in the group. If all
were declined, or there are none, verdicts stand, and a finding names the check.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from nsabench import labels
from nsabench.checks.cases import best_baseline, by_case
from nsabench.checks.finding import Effect, Finding, Group
from nsabench.checks.timing import MORE, worked_ms
from nsabench.model.record import Record
from nsabench.model.vocabulary import NO_ORDER, Catch, Regime, Role, Status

CHECK = "controls"
CHECKS_OF_OUTPUT = ("parity",)
CHECKS_OF_TIMED = (*CHECKS_OF_OUTPUT, "timer", "baseline", "roofline")
CHECKS_OF_QUEUE = ("host", "burst")  # verdicts in the regime `queue` also need these
AGAINST_BASELINES = ("timer", "baseline")  # checks that compare a control with a baseline
GAINED = 0.8  # a trick that works takes less than this share of the baseline's time
# On a busy CPU, a time may be below GAINED times the time of equal code. A trick on the host's
# clock that works stops the clock, so its time is below even this share.
GAINED_ON_HOST = 0.1
COLD = 2.5  # factor by which cold caches lengthen the host's part of a call
A_BURST_MS = 1.9  # a call that takes this long or longer is the only one in its burst


def set_catches(records: Sequence[Record], findings: Sequence[Finding]) -> list[Record]:
    cases, found = by_case(records), by_case(findings)
    return [
        replace(r, caught=decide_catch(r, cases[r.case_id], found.get(r.case_id, [])))
        if r.role is Role.CONTROL
        else r
        for r in records
    ]


def find_failures(records: Sequence[Record]) -> list[Finding]:
    by_control: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        if record.role is Role.CONTROL:
            by_control[record.implementation].append(record)
    findings = [f for name, own in by_control.items() for f in _describe_control(name, own)]
    unproven = find_unproven(records)
    for lack in unproven:
        if lack.is_stuck:
            regime = guarded_regime(lack.check)
            sentence = (
                f"no control of {lack.group} reached the check {lack.check!r} to show that it "
                f"works, so nothing is decided for {lack.group}{_name_regime(regime)}"
            )
            findings.append(
                Finding(CHECK, Effect.INVALID, sentence, groups=(lack.group,), regime=regime)
            )
    return findings + [
        Finding(CHECK, Effect.UNPROVEN, sentence, groups=groups)
        for groups, sentence in describe_unproven(unproven)
    ]


def _name_regime(regime: Regime | None) -> str:
    return f" in the regime {regime}" if regime else ""


def decide_catch(row: Record, case: Sequence[Record], findings: Sequence[Finding]) -> Catch:
    if row.status in (Status.UNSUPPORTED, Status.SKIPPED):
        return Catch.DECLINED
    if row.status not in (Status.OK, Status.WRONG, Status.IMPLAUSIBLE):
        return Catch.UNPROVEN
    if row.caught_by == "burst":
        return Catch.CAUGHT if any(_names(f, row) for f in findings) else _decide_burst(row)
    if row.caught_by == "parity":
        found = any(f.effect is Effect.WRONG and f.names(row) for f in findings)
        if row.status is Status.WRONG or found:
            return Catch.CAUGHT
        return Catch.UNPROVEN if row.needs_order and NO_ORDER in row.notes else Catch.MISSED
    if row.status is Status.WRONG or row.median_ms is None:
        return Catch.UNPROVEN  # another check rejected it first, or it was not timed
    if row.caught_by in AGAINST_BASELINES:
        wrapped = [r for r in case if not row.wraps or r.implementation == row.wraps]
        if best_baseline(wrapped, alongside=True) is None:
            return Catch.UNPROVEN  # the baseline that it wraps has no valid time
    if row.caught_by == "timer":
        return _decide_timer(row, best_baseline(case, alongside=True))
    if any(_names(f, row) for f in findings):
        return Catch.CAUGHT
    if row.caught_by == "host":
        return _decide_host(row)
    if row.caught_by == "roofline":
        best = best_baseline(case, alongside=True)
        if best is not None and best.median_ms and row.median_ms >= GAINED * best.median_ms:
            return Catch.UNPROVEN  # for example, its host time keeps it from being too fast
    return Catch.MISSED


def _decide_burst(record: Record) -> Catch:
    if record.status is not Status.OK or record.median_in(Regime.QUEUE) is None:
        return Catch.UNPROVEN
    alone = max(record.median_ms or 0.0, (record.host_us or 0.0) / 1e3) >= A_BURST_MS
    return Catch.DECLINED if alone else Catch.MISSED


def _decide_host(record: Record) -> Catch:
    work_ms, queued_ms = worked_ms(record), record.median_in(Regime.QUEUE)
    if work_ms is None or queued_ms is None:
        return Catch.UNPROVEN
    if record.host_us is None:  # no spin held the device, so only bursts include the host time
        hidden = queued_ms <= MORE * work_ms
    else:
        hidden = record.host_us / 1e3 < COLD * MORE * work_ms
    return Catch.DECLINED if hidden else Catch.MISSED


def _decide_timer(record: Record, best: Record | None) -> Catch:
    if best is None or not best.median_ms or not record.median_ms:
        return Catch.UNPROVEN
    gained = GAINED if record.device == "cuda" else GAINED_ON_HOST
    return Catch.MISSED if record.median_ms < gained * best.median_ms else Catch.CAUGHT


def _names(finding: Finding, record: Record) -> bool:
    return finding.check == record.caught_by and finding.names(record)


def _describe_control(name: str, records: Sequence[Record]) -> Iterator[Finding]:
    by_catch = {c: [r for r in records if r.caught is c] for c in Catch}
    missed, stuck = by_catch[Catch.MISSED], by_catch[Catch.UNPROVEN]
    if missed:
        first = missed[0]
        time = "" if first.median_ms is None else f", {first.median_ms:.3g} ms"
        regime = guarded_regime(first.caught_by)
        sentence = (
            f"the check {first.caught_by!r} did not catch the control in {len(missed)} of "
            f"{len(by_catch[Catch.CAUGHT]) + len(missed)} cases, first in {labels.case(first)} "
            f"({first.status}{time}): this run decides nothing{_name_regime(regime)}"
        )
        yield Finding(CHECK, Effect.INVALID, sentence, implementation=name, regime=regime)
    if stuck:
        first = stuck[0]
        why = first.reason or "it was not faster, or no valid baseline was timed beside it"
        sentence = (
            f"the control did not reach the check {first.caught_by!r} in {len(stuck)} cases, first "
            f"in {labels.case(first)} ({first.status}): {why}"
        )
        yield Finding(CHECK, Effect.NOTE, sentence, implementation=name)


def guarded_regime(check: str) -> Regime | None:
    """Return the only regime whose verdicts a check guards, or None if it guards all."""
    return Regime.QUEUE if check in CHECKS_OF_QUEUE else None


@dataclass(frozen=True)
class Unproven:
    """A check that no control of a group showed to work."""

    group: Group
    check: str
    is_stuck: bool  # a control is `unproven`; False: all declined, or there is none


def find_unproven(records: Sequence[Record]) -> list[Unproven]:
    """Return the unproven checks that verdicts rest on, or that have an unproven control."""
    guarding = [
        (Group.from_record(record), check)
        for record in records
        if record.role is Role.CANDIDATE
        for check in (CHECKS_OF_OUTPUT if record.median_ms is None else CHECKS_OF_TIMED)
    ]
    return list_unproven(
        ((Group.from_record(r), r.caught_by, r.caught) for r in records if r.caught), guarding
    )


def list_unproven(
    outcomes: Iterable[tuple[Group, str, Catch]], guarding: Iterable[tuple[Group, str]] = ()
) -> list[Unproven]:
    """Return the checks that are in `guarding` or have an unproven control, unless one of their
    controls was caught or missed. outcomes: the group, check and `caught` of each control."""
    catches: dict[tuple[Group, str], set[Catch]] = defaultdict(set)
    for group, check, caught in outcomes:
        catches[group, check].add(caught)
    stuck = [key for key, seen in catches.items() if Catch.UNPROVEN in seen]
    return [
        Unproven(group, check, Catch.UNPROVEN in catches[group, check])
        for group, check in dict.fromkeys([*guarding, *stuck])
        # A missed control has its own finding.
        if catches[group, check].isdisjoint((Catch.CAUGHT, Catch.MISSED))
    ]


def describe_unproven(unproven: Iterable[Unproven]) -> Iterator[tuple[tuple[Group, ...], str]]:
    """Yield groups with the same unproven checks, and a sentence, except for checks `is_stuck`."""
    checks: dict[Group, list[str]] = defaultdict(list)
    for lack in unproven:
        if not lack.is_stuck:
            checks[lack.group].append(lack.check)
    alike: dict[tuple[str, str], list[Group]] = defaultdict(list)
    for group, names in checks.items():
        alike[group.way, ", ".join(names)].append(group)
    for (way, joined), groups in alike.items():
        where = ", ".join(group.op for group in groups) + way
        yield tuple(groups), f"no control showed that these checks work for {where}: {joined}"

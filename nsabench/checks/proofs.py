"""Find the checks that controls showed to work, and where.

A control that is caught proves its check for its group: its op, direction, mode, and one stream or
several. Other groups are timed and compared by other code, so it proves nothing there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from nsabench.checks.finding import Group
from nsabench.model.record import Record
from nsabench.model.vocabulary import Catch, Regime, Role

OUTPUT, TIME = ("parity",), ("timer", "baseline", "roofline")
GUARDS = (*OUTPUT, *TIME)  # every verdict needs these checks
QUEUE = ("host", "burst")  # verdicts in the queue also need these


def regime_of(check: str) -> Regime | None:
    """Return the only regime whose verdicts a check guards, or None if it guards all."""
    return Regime.QUEUE if check in QUEUE else None


@dataclass(frozen=True)
class Unproven:
    """A check that no control of a group showed to work.

    is_stuck: its controls failed before it. Otherwise all declined, or it has no control.
    """

    group: Group
    check: str
    is_stuck: bool


def unproven(records: Sequence[Record]) -> list[Unproven]:
    """Return the unproven checks in the records of a run: those that guard a verdict, or that a
    control was there for."""
    return lacking(
        ((Group.of(r), r.caught_by, r.caught) for r in records if r.caught), guarded(records)
    )


def lacking(
    outcomes: Iterable[tuple[Group, str, Catch]], guarded: Iterable[tuple[Group, str]] = ()
) -> list[Unproven]:
    """Return the checks that caught none of these controls.

    outcomes: the group, the check and the `caught` of each control. guarded: the checks behind a
    verdict, with their groups.
    """
    catches: dict[tuple[Group, str], set[Catch]] = defaultdict(set)
    for group, check, caught in outcomes:
        catches[group, check].add(caught)
    stuck = [key for key, all_ in catches.items() if Catch.UNPROVEN in all_]
    wanted = dict.fromkeys([*guarded, *stuck])
    return [
        Unproven(group, check, Catch.UNPROVEN in catches[group, check])
        for group, check in wanted
        # A missed control has its own finding.
        if catches[group, check].isdisjoint((Catch.CAUGHT, Catch.MISSED))
    ]


def guarded(records: Iterable[Record]) -> Iterator[tuple[Group, str]]:
    """Yield the checks behind a verdict. Checks of times need a timed candidate."""
    for record in records:
        if record.role is Role.CANDIDATE:
            for check in OUTPUT if record.median_ms is None else GUARDS:
                yield Group.of(record), check


def by_way(lacking: Iterable[Unproven]) -> Iterator[tuple[tuple[Group, ...], str]]:
    """Yield a sentence for groups that lack the same checks, without those that are stuck."""
    checks: dict[Group, list[str]] = defaultdict(list)
    for lack in lacking:
        if not lack.is_stuck:
            checks[lack.group].append(lack.check)
    alike: dict[tuple[str, str], list[Group]] = defaultdict(list)
    for group, lacked in checks.items():
        alike[group.way, ", ".join(lacked)].append(group)
    for (way, names), groups in alike.items():
        where = ", ".join(group.op for group in groups) + way
        yield tuple(groups), f"no control showed that these checks work for {where}: {names}"

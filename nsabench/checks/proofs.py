"""Which checks were shown to work, and where.

A check is proven by a control that it caught, for the op, the direction and the mode in which that
was, and for one stream or several: calls do not vouch for replays of a graph, nor a forward for a
backward, nor one call for several at once, since other code of the bench times and compares them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from nsabench.checks.finding import Group, named
from nsabench.model.record import Record
from nsabench.model.vocabulary import Catch, Regime, Role, Word

OUTPUT, TIME = ("parity",), ("timer", "baseline", "roofline")
# Without which a verdict is no verdict: of an output, and of a time.
GUARDS = (*OUTPUT, *TIME)
QUEUE = ("host", "burst")  # what verdicts in the queue need besides, and no others


def regime_of(check: str) -> Regime | None:
    """The only regime whose verdicts a check guards; None: it guards all."""
    return Regime.QUEUE if check in QUEUE else None


class Lack(Word):
    """Why it is not known whether a check works."""

    STUCK = "stuck", "none got as far as being caught"
    DECLINED = "declined", "all declined"
    ABSENT = "absent", "none was there"


@dataclass(frozen=True)
class Unproven:
    """A check that no control showed to work on the cases of a group."""

    group: Group
    check: str
    lack: Lack


def unproven(records: Sequence[Record]) -> list[Unproven]:
    """The checks that guard a verdict, or that a control was there for, and that caught none in
    the records of a run."""
    return lacking(
        ((Group.of(r), r.caught_by, r.caught) for r in records if r.caught), guarded(records)
    )


def lacking(
    outcomes: Iterable[tuple[Group, str, Catch]], guarded: Iterable[tuple[Group, str]] = ()
) -> list[Unproven]:
    """The checks that caught none of these controls.

    outcomes: of each control its group, the check that is meant to catch it, and what became of it.
    guarded: the checks behind a verdict.
    """
    catches: dict[tuple[Group, str], set[Catch]] = defaultdict(set)
    for group, check, caught in outcomes:
        catches[group, check].add(caught)
    stuck = [key for key, all_ in catches.items() if Catch.UNPROVEN in all_]
    wanted = dict.fromkeys([*guarded, *stuck])
    found = [(group, check, _lack(catches[group, check])) for group, check in wanted]
    return [Unproven(group, check, lack) for group, check, lack in found if lack is not None]


def guarded(records: Iterable[Record]) -> Iterator[tuple[Group, str]]:
    """The checks behind a verdict in each group. Those of a time need a timed candidate."""
    for record in records:
        if record.role is Role.CANDIDATE:
            for check in OUTPUT if record.median_ms is None else GUARDS:
                yield Group.of(record), check


def _lack(catches: set[Catch]) -> Lack | None:
    if catches & {Catch.CAUGHT, Catch.MISSED}:  # missed is said of the control itself
        return None
    if Catch.UNPROVEN in catches:
        return Lack.STUCK
    return Lack.DECLINED if catches else Lack.ABSENT


def by_way(lacking: Iterable[Unproven]) -> Iterator[tuple[tuple[Group, ...], str]]:
    """Say what is unproven and not stuck, in one sentence for groups that lack the same checks."""
    of_group: dict[Group, list[Unproven]] = defaultdict(list)
    for lack in lacking:
        if lack.lack is not Lack.STUCK:
            of_group[lack.group].append(lack)
    alike: dict[tuple[str, str], list[Group]] = defaultdict(list)
    for group, own in of_group.items():
        alike[group.way, _checks(own)].append(group)
    for (_, checks), groups in alike.items():
        yield tuple(groups), f"no control showed that {checks} for {named(groups)}"


def _checks(lacking: Sequence[Unproven]) -> str:
    """`the checks timer and baseline (all declined) and roofline (none was there) work`."""
    parts = []
    for lack in Lack:
        names = [u.check for u in lacking if u.lack is lack]
        if names:
            parts.append(f"{_listed(names)} ({lack.meaning})")
    checks, work = ("checks", "work") if len(lacking) > 1 else ("check", "works")
    return f"the {checks} {_listed(parts)} {work}"


def _listed(words: Sequence[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last

"""Find the checks that controls showed to work, and where.

A control that is caught proves its check for its group: its op, direction, mode, and one stream or
several. Other groups are timed and compared by other code, so it proves nothing there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from nsabench.checks.finding import Group, named
from nsabench.model.record import Record
from nsabench.model.vocabulary import Catch, Regime, Role, Word

OUTPUT, TIME = ("parity",), ("timer", "baseline", "roofline")
GUARDS = (*OUTPUT, *TIME)  # every verdict needs these checks
QUEUE = ("host", "burst")  # verdicts in the queue also need these


def regime_of(check: str) -> Regime | None:
    """Return the only regime whose verdicts a check guards, or None if it guards all."""
    return Regime.QUEUE if check in QUEUE else None


class Lack(Word):
    STUCK = "stuck", "none got as far as being caught"
    DECLINED = "declined", "all declined"
    ABSENT = "absent", "none was there"


@dataclass(frozen=True)
class Unproven:
    group: Group
    check: str
    lack: Lack


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
    found = [(group, check, _find_lack(catches[group, check])) for group, check in wanted]
    return [Unproven(group, check, lack) for group, check, lack in found if lack is not None]


def guarded(records: Iterable[Record]) -> Iterator[tuple[Group, str]]:
    """Yield the checks behind a verdict. Checks of times need a timed candidate."""
    for record in records:
        if record.role is Role.CANDIDATE:
            for check in OUTPUT if record.median_ms is None else GUARDS:
                yield Group.of(record), check


def _find_lack(catches: set[Catch]) -> Lack | None:
    if catches & {Catch.CAUGHT, Catch.MISSED}:  # a missed control has its own finding
        return None
    if Catch.UNPROVEN in catches:
        return Lack.STUCK
    return Lack.DECLINED if catches else Lack.ABSENT


def by_way(lacking: Iterable[Unproven]) -> Iterator[tuple[tuple[Group, ...], str]]:
    """Yield a sentence for groups that lack the same checks, without those that are stuck."""
    of_group: dict[Group, list[Unproven]] = defaultdict(list)
    for lack in lacking:
        if lack.lack is not Lack.STUCK:
            of_group[lack.group].append(lack)
    alike: dict[tuple[str, str], list[Group]] = defaultdict(list)
    for group, own in of_group.items():
        alike[group.way, _list_checks(own)].append(group)
    for (_, checks), groups in alike.items():
        yield tuple(groups), f"no control showed that {checks} for {named(groups)}"


def _list_checks(lacking: Sequence[Unproven]) -> str:
    """`the checks timer and baseline (all declined) and roofline (none was there) work`."""
    parts = []
    for lack in Lack:
        names = [u.check for u in lacking if u.lack is lack]
        if names:
            parts.append(f"{_join_words(names)} ({lack.meaning})")
    checks, work = ("checks", "work") if len(lacking) > 1 else ("check", "works")
    return f"the {checks} {_join_words(parts)} {work}"


def _join_words(words: Sequence[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last

"""A plan in parts that are measured as runs of their own, and never part a ladder."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from nsabench import ops
from nsabench.errors import UsageError
from nsabench.model.plan import ImplementationInfo, PlannedCase
from nsabench.model.vocabulary import Direction, Mode, Role
from nsabench.planning.cost import Costs, OpDirection, by_work, op_direction

ALL = "1/1"
_UNIT = 1e6  # of a second
Cases = list[PlannedCase]
SLACK = 1.02  # times as long the last shard may take, to keep together what compiles together
ROOMS = 16  # that shards are given in turn, where beginnings are known
MOST_PLACES = 10_000_000  # that are looked at, for all of them


def share(
    cases: Sequence[PlannedCase], shard: str, costs: Costs | None = None
) -> list[PlannedCase]:
    """The cases of the shard `i/n`, in the order of the plan.

    A ladder stays whole: what looks along a length would not find in a part what it finds in the
    whole. Where that leaves the shards in balance, so do the cases of an op, as far as they fit, or
    else those of the same sizes: each shard measures the controls of its ops, and compiles. Where
    it is known what that takes, forwards and backwards are parted as ops are. What is dealt depends
    on the plan and its costs alone, so no two hosts see another plan. costs: None: those that
    `planning.cost` estimates.

    Raises `UsageError` when `shard` is not `i/n`, or has no ladder.
    """
    match = re.fullmatch(r"(\d+)/(\d+)", shard)
    index, count = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= index <= count:
        raise UsageError(
            f"{shard!r} is not a shard", "write i/n with 1 <= i <= n, for example 2/4."
        )
    ladders: dict[Hashable, list[PlannedCase]] = defaultdict(list)
    for planned in cases:
        ladders[ops.ladder(planned.case)].append(planned)
    if index > len(ladders):
        raise UsageError(
            f"shard {shard} is empty: the {len(cases)} cases make {len(ladders)} ladders, and "
            f"those that differ only in their length stay together",
            f"take no more than {len(ladders)} shards.",
        )
    costs = by_work(cases) if costs is None else costs
    units = _Units.of(costs, cases)
    alike = _alike(cases, units.beginnings)
    ladder_by_ladder = _dealt(ladders.values(), units, count)
    longest = SLACK * units.longest(ladder_by_ladder)
    shards = next(
        (
            dealt
            for dealt in (_filled(alike, units, ladder_by_ladder), _dealt(alike, units, count))
            if len(dealt) == len(ladder_by_ladder)
            and all(dealt)
            and units.longest(dealt) <= longest
        ),
        ladder_by_ladder,
    )
    mine = {planned.id for planned in shards[index - 1]}
    return [planned for planned in cases if planned.id in mine]


@dataclass(frozen=True)
class _Units:
    """Of time, in whole numbers: the sum of a shard is the same in whatever order, on every host.
    cases: by id; beginnings: where they are known."""

    cases: Mapping[str, int]
    beginnings: Mapping[OpDirection, int]

    @classmethod
    def of(cls, costs: Costs, cases: Iterable[PlannedCase]) -> _Units:
        return cls(
            {planned.id: round(costs.seconds[planned.id] * _UNIT) for planned in cases},
            {begun: round(seconds * _UNIT) for begun, seconds in costs.beginnings.items()},
        )

    def of_cases(self, cases: Cases) -> int:
        """What cases take where others like them are begun already."""
        return sum(self.cases[planned.id] for planned in cases)

    def of_shard(self, cases: Cases) -> int:
        """What a shard of just these cases takes."""
        begun = {op_direction(planned.case) for planned in cases}
        return self.of_cases(cases) + sum(self.beginnings.get(one, 0) for one in begun)

    def longest(self, shards: Iterable[Cases]) -> int:
        """How long the last shard takes."""
        return max(self.of_shard(one) for one in shards)


def _alike(cases: Iterable[PlannedCase], beginnings: Collection[OpDirection]) -> list[Cases]:
    """Ladders that share most of their kernels, together. Forwards and backwards share some, but
    what each takes to begin is more, where that is known."""
    alike: dict[Hashable, list[PlannedCase]] = defaultdict(list)
    for planned in cases:
        case = planned.case
        begun = op_direction(case) if op_direction(case) in beginnings else case.op
        alike[begun, ops.sizes_but_length(case), case.dtype].append(planned)
    return list(alike.values())


def _filled(kept: Collection[Cases], units: _Units, others: Sequence[Cases]) -> list[Cases]:
    """As `_dealt`, but op after op, and of an op direction after direction, a shard is filled
    before the next is begun; what is kept together is of one op.

    The dearest op comes last, the dearest direction of an op, too, and of these what is dearest
    first: what fits into no shard goes to the one that has then cost least. How often one is begun,
    and so how much room a shard needs, is known only when all are dealt: rooms up to the longest of
    other shards are tried, and that counts by which the last shard ends first.
    """
    count = len(others)
    whole = [(op_direction(cases[0].case), units.of_cases(cases), cases) for cases in kept]
    of_ops: dict[str, int] = defaultdict(int)
    of_both: dict[OpDirection, int] = defaultdict(int)
    for both, cost, _ in whole:
        of_ops[both[0]] += cost
        of_both[both] += cost
    whole.sort(key=lambda one: (of_ops[one[0][0]], one[0][0], of_both[one[0]], one[0], -one[1]))
    least = sum(units.beginnings.get(both, 0) + cost for both, cost in of_both.items()) // count
    more = max(units.longest(others) - least, 0)
    tried = min(ROOMS, MOST_PLACES // (len(whole) * count)) if units.beginnings else 1
    rooms = [least + more * i // ROOMS for i in range(max(tried, 1))]
    return min((_within(room, whole, units, count) for room in rooms), key=units.longest)


def _within(
    room: int, whole: Iterable[tuple[OpDirection, int, Cases]], units: _Units, count: int
) -> list[Cases]:
    """Dealt in this order to shards with this room."""
    shards: list[Cases] = [[] for _ in range(count)]
    spent = [0] * count
    begun: list[set[OpDirection]] = [set() for _ in range(count)]
    for both, cost, cases in whole:
        beginning = units.beginnings.get(both, 0)
        then = [s + cost + beginning * (both not in b) for s, b in zip(spent, begun, strict=True)]
        fitting = (i for i, cost_then in enumerate(then) if cost_then <= room)
        place = next(fitting, then.index(min(then)))
        shards[place] += cases
        spent[place] = then[place]
        begun[place].add(both)
    return shards


def _dealt(kept: Collection[Cases], units: _Units, count: int) -> list[Cases]:
    """The cases of each shard; what is kept together is in one.

    The dearest goes first, each to the shard that has cost least so far. Of more shards than there
    is to deal, further ones would be empty, and are left away.
    """
    shards: list[Cases] = [[] for _ in range(min(count, len(kept)))]
    spent = [0] * len(shards)
    whole = [(units.of_cases(cases), cases) for cases in kept]
    for cost, cases in sorted(whole, key=lambda one: -one[0]):
        least = spent.index(min(spent))
        # What costs nothing counts as well: else one shard had it all.
        spent[least] += max(cost, 1)
        shards[least] += cases
    return shards


def canary(
    cases: Sequence[PlannedCase], implementations: Sequence[ImplementationInfo], device: str
) -> PlannedCase | None:
    """The case that all shards of these cases measure: the middle one, by its work, of those whose
    times say most of a host; with the candidates and baselines that run on the device.

    A forward on one stream is chosen where there is one. None where nothing runs there.
    """
    runs = {
        (i.op, i.name)
        for i in implementations
        if i.role is not Role.CONTROL and device in map(str, i.devices)
    }
    able = [
        planned.model_copy(update={"implementations": names, "alongside": ()})
        for planned in cases
        if (names := tuple(n for n in planned.implementations if (planned.case.op, n) in runs))
    ]
    plain = [planned for planned in able if _is_plain(planned)] or able
    ordered = sorted(plain, key=lambda p: (ops.work(p.case).bytes_min, p.id))
    return ordered[len(ordered) // 2] if ordered else None


def _is_plain(planned: PlannedCase) -> bool:
    case = planned.case
    return (case.direction, case.mode, case.streams) == (Direction.FORWARD, Mode.STREAM, 1)

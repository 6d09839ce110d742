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
from nsabench.planning.cost import Costs, Kind, by_work, kind_of

ALL = "1/1"
_UNIT = 1e6  # of a second
Cases = list[PlannedCase]
SIZES, MOST_TRIED = 16, 100_000  # sizes of a shard, each by one percent; places looked at for one
ROOM = 1.02  # times as long the last shard may take, to keep together what compiles together


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
    alike = _alike(cases, apart=bool(units.beginnings))
    ladder_by_ladder = _dealt(ladders.values(), units, count)
    longest = ROOM * units.longest(ladder_by_ladder)
    shards = next(
        (
            dealt
            for dealt in (_filled(alike, units, count), _dealt(alike, units, count))
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
    cases: by id; beginnings: by kind."""

    cases: Mapping[str, int]
    beginnings: Mapping[Kind, int]

    @classmethod
    def of(cls, costs: Costs, cases: Iterable[PlannedCase]) -> _Units:
        return cls(
            {planned.id: round(costs.seconds[planned.id] * _UNIT) for planned in cases},
            {kind: round(seconds * _UNIT) for kind, seconds in costs.beginnings.items()},
        )

    def alone(self, cases: Cases) -> int:
        """What cases take where their kinds are begun already."""
        return sum(self.cases[planned.id] for planned in cases)

    def together(self, cases: Cases) -> int:
        """What a shard of just these cases takes."""
        kinds = {kind_of(planned.case) for planned in cases}
        return self.alone(cases) + sum(self.beginnings.get(kind, 0) for kind in kinds)

    def longest(self, shards: Iterable[Cases]) -> int:
        """How long the last shard takes."""
        return max(self.together(one) for one in shards)


def _alike(cases: Iterable[PlannedCase], *, apart: bool) -> list[Cases]:
    """Ladders that share most of their kernels, together. apart: those of a kind only, since it is
    known what each kind takes to begin, and that is more than some kernels."""
    alike: dict[Hashable, list[PlannedCase]] = defaultdict(list)
    for planned in cases:
        case = planned.case
        kind = kind_of(case) if apart else case.op
        alike[kind, ops.sizes_but_length(case), case.dtype].append(planned)
    return list(alike.values())


def _filled(kept: Collection[Cases], units: _Units, count: int) -> list[Cases]:
    """As `_dealt`, but op after op, and kind after kind of an op, a shard is filled before the next
    is begun; what is kept together is of one kind.

    The dearest op comes last, the dearest kind of an op, too, and of a kind what is dearest first:
    to a shard that has begun the kind, if it fits there; what fits into none goes to the shard that
    has then cost least. How often a kind is begun is known only when all are dealt: of several
    sizes of a shard that are tried the one counts by which the last shard ends first.
    """
    whole = [(kind_of(cases[0].case), units.alone(cases), cases) for cases in kept]
    of_ops: dict[str, int] = defaultdict(int)
    of_kinds: dict[Kind, int] = defaultdict(int)
    for kind, cost, _ in whole:
        of_ops[kind[0]] += cost
        of_kinds[kind] += cost
    whole.sort(key=lambda one: (of_ops[one[0][0]], one[0][0], of_kinds[one[0]], one[0], -one[1]))
    least = sum(units.beginnings.get(kind, 0) + cost for kind, cost in of_kinds.items()) // count
    tried = SIZES if units.beginnings and len(whole) * count <= MOST_TRIED else 1
    rooms = [least + least * i // 100 for i in range(tried)]
    return min((_within(room, whole, units, count) for room in rooms), key=units.longest)


def _within(
    room: int, whole: Iterable[tuple[Kind, int, Cases]], units: _Units, count: int
) -> list[Cases]:
    """Dealt in this order to shards of this size."""
    shards: list[Cases] = [[] for _ in range(count)]
    spent = [0] * count
    begun: list[set[Kind]] = [set() for _ in range(count)]
    for kind, cost, cases in whole:
        first = units.beginnings.get(kind, 0)
        then = [s + cost + first * (kind not in b) for s, b in zip(spent, begun, strict=True)]
        fitting = [i for i in range(count) if then[i] <= room]
        going_on = (i for i in fitting if kind in begun[i])
        place = next(going_on, fitting[0] if fitting else then.index(min(then)))
        shards[place] += cases
        spent[place] = then[place]
        begun[place].add(kind)
    return shards


def _dealt(kept: Collection[Cases], units: _Units, count: int) -> list[Cases]:
    """The cases of each shard; what is kept together is in one.

    The dearest goes first, each to the shard that has cost least so far. Of more shards than there
    is to deal, further ones would be empty, and are left away.
    """
    shards: list[Cases] = [[] for _ in range(min(count, len(kept)))]
    spent = [0] * len(shards)
    whole = [(units.alone(cases), cases) for cases in kept]
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

"""A plan in parts that are measured as runs of their own, and never part a ladder."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence

from nsabench import ops
from nsabench.errors import UsageError
from nsabench.model.plan import ImplementationInfo, PlannedCase
from nsabench.model.vocabulary import Direction, Mode, Role
from nsabench.planning.cost import by_work

ALL = "1/1"
_UNIT = 1e6  # of a second
Cases = list[PlannedCase]
ROOM = 1.02  # times as long the last shard may take, to keep together what compiles together


def share(
    cases: Sequence[PlannedCase], shard: str, costs: Mapping[str, float] | None = None
) -> list[PlannedCase]:
    """The cases of the shard `i/n`, in the order of the plan.

    A ladder stays whole: what looks along a length would not find in a part what it finds in the
    whole. Where that leaves the shards in balance, so do the cases of an op, as far as they fit, or
    else those of the same sizes: each shard measures the controls of its ops, and compiles. What
    is dealt depends on the plan and its costs alone, so no two hosts see another plan. costs:
    seconds of each case by id; None: those that `planning.cost` estimates.

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
    # Whole numbers: the sum of a shard is the same in whatever order, on every host.
    units = {planned.id: round(costs[planned.id] * _UNIT) for planned in cases}
    alike = _alike(cases)
    ladder_by_ladder = _dealt(ladders.values(), units, count)
    longest = ROOM * _longest(ladder_by_ladder, units)
    shards = next(
        (
            dealt
            for dealt in (_filled(alike, units, count), _dealt(alike, units, count))
            if len(dealt) == len(ladder_by_ladder)
            and all(dealt)
            and _longest(dealt, units) <= longest
        ),
        ladder_by_ladder,
    )
    mine = {planned.id for planned in shards[index - 1]}
    return [planned for planned in cases if planned.id in mine]


def _alike(cases: Iterable[PlannedCase]) -> list[Cases]:
    """Ladders that share most of their kernels, together."""
    alike: dict[Hashable, list[PlannedCase]] = defaultdict(list)
    for planned in cases:
        case = planned.case
        alike[case.op, ops.sizes_but_length(case), case.dtype].append(planned)
    return list(alike.values())


def _filled(kept: Collection[Cases], units: Mapping[str, int], count: int) -> list[Cases]:
    """As `_dealt`, but op after op, a shard is filled before the next is begun; what is kept
    together is of one op.

    The dearest op comes last, and of an op what is dearest first: what fits into none goes to the
    shard that has cost least.
    """
    whole = [(cases[0].case.op, _cost(cases, units), cases) for cases in kept]
    of_ops: dict[str, int] = defaultdict(int)
    for op, cost, _ in whole:
        of_ops[op] += cost
    whole.sort(key=lambda one: (of_ops[one[0]], one[0], -one[1]))
    room = sum(of_ops.values()) / count
    shards: list[Cases] = [[] for _ in range(count)]
    spent = [0] * count
    for _, cost, cases in whole:
        fitting = (i for i, before in enumerate(spent) if before + cost <= room)
        place = next(fitting, spent.index(min(spent)))
        spent[place] += cost
        shards[place] += cases
    return shards


def _dealt(kept: Collection[Cases], units: Mapping[str, int], count: int) -> list[Cases]:
    """The cases of each shard; what is kept together is in one. units: of time, by id.

    The dearest goes first, each to the shard that has cost least so far. Of more shards than there
    is to deal, further ones would be empty, and are left away.
    """
    shards: list[Cases] = [[] for _ in range(min(count, len(kept)))]
    spent = [0] * len(shards)
    whole = [(_cost(cases, units), cases) for cases in kept]
    for cost, cases in sorted(whole, key=lambda one: -one[0]):
        least = spent.index(min(spent))
        # What costs nothing counts as well: else one shard had it all.
        spent[least] += max(cost, 1)
        shards[least] += cases
    return shards


def _cost(cases: Cases, units: Mapping[str, int]) -> int:
    return sum(units[planned.id] for planned in cases)


def _longest(shards: Iterable[Cases], units: Mapping[str, int]) -> int:
    """How long the last shard takes."""
    return max(_cost(one, units) for one in shards)


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

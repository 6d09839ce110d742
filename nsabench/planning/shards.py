"""A plan in parts that are measured as runs of their own, and never part a ladder."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Hashable, Mapping, Sequence

from nsabench import ops
from nsabench.errors import UsageError
from nsabench.model.case import Case
from nsabench.model.plan import ImplementationInfo, PlannedCase
from nsabench.model.vocabulary import Direction, Mode, Role
from nsabench.planning.cost import by_work

ALL = "1/1"
_UNIT = 1e6  # of a second
ROOM = 1.02  # of the time of the last shard, that compiling less is worth


def share(
    cases: Sequence[PlannedCase], shard: str, costs: Mapping[str, float] | None = None
) -> list[PlannedCase]:
    """The cases of the shard `i/n`, in the order of the plan.

    A ladder stays whole: what looks along a length would not find in a part what it finds in the
    whole. So do all cases of the same sizes, where that leaves the shards in balance, since each
    shard compiles what it needs. The dearest goes first, each to the shard that has cost least so
    far; so no two hosts see another plan. costs: seconds of each case by id; None: those that
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
    # Whole numbers: the sum of a shard is the same in whatever order, on every host.
    units = {planned.id: round(costs[planned.id] * _UNIT) for planned in cases}
    alike: dict[Hashable, list[PlannedCase]] = defaultdict(list)
    for planned in cases:
        alike[_compiled_alike(planned.case)].append(planned)
    shards, together = (_dealt(kept.values(), units, count) for kept in (ladders, alike))
    in_balance = _longest(together, units) <= ROOM * _longest(shards, units)
    if in_balance and len(together) == len(shards):
        shards = together
    mine = shards[index - 1]
    return [planned for planned in cases if planned.id in mine]


def _compiled_alike(case: Case) -> Hashable:
    """The same for ladders that share most of their kernels."""
    return case.op, ops.sizes_but_length(case), case.dtype


def _dealt(
    kept: Collection[list[PlannedCase]], units: Mapping[str, int], count: int
) -> list[set[str]]:
    """The ids of the cases of each shard; what is kept together is in one. units: of time, by id.

    Of more shards than there is to deal, further ones would be empty, and are left away.
    """
    whole = [(sum(units[planned.id] for planned in cases), cases) for cases in kept]
    spent = [0] * min(count, len(whole))
    shards: list[set[str]] = [set() for _ in spent]
    for cost, cases in sorted(whole, key=lambda one: -one[0]):
        least = spent.index(min(spent))
        # What costs nothing counts as well: else one shard had it all.
        spent[least] += max(cost, 1)
        shards[least].update(planned.id for planned in cases)
    return shards


def _longest(shards: Sequence[Collection[str]], units: Mapping[str, int]) -> int:
    """How long the last shard takes."""
    return max(sum(units[case_id] for case_id in shard) for shard in shards)


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

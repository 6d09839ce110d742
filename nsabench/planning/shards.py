"""Split a plan into shards, which are measured as runs of their own."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence

from nsabench import ops
from nsabench.errors import UsageError
from nsabench.model.case import Case
from nsabench.model.plan import ImplementationInfo, PlannedCase
from nsabench.model.vocabulary import Direction, Mode, Role
from nsabench.planning.cost import by_work

ALL = "1/1"
SLACK = 1.02  # how much longer the longest shard may be, so that an op is in fewer shards
Cases = list[PlannedCase]
Costs = Mapping[str, int]  # by case id, in a unit of time


def share(cases: Sequence[PlannedCase], shard: str, costs: Costs | None = None) -> Cases:
    """Return the cases of the shard `i/n`, in the order of the plan.

    Cases that differ only in length stay in one shard, since some checks look along the length.
    Each shard also measures the controls of its ops and compiles their kernels. So cases of one op
    stay together where that makes the longest shard at most 2 % longer. The result depends only on
    the plan, so every host computes the same shards.

    costs: what each case costs; by default its estimate (`planning.cost`).

    Raises `UsageError` when `shard` is not `i/n`, or would be empty.
    """
    match = re.fullmatch(r"(\d+)/(\d+)", shard)
    index, count = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= index <= count:
        raise UsageError(
            f"{shard!r} is not a shard", "write i/n with 1 <= i <= n, for example 2/4."
        )
    series = _grouped(cases, ops.ladder)
    if index > len(series):
        raise UsageError(
            f"shard {shard} is empty: the {len(cases)} cases make {len(series)} length series, "
            f"and a series stays in one shard",
            f"take no more than {len(series)} shards.",
        )
    count = min(count, len(series))
    costs = by_work(cases) if costs is None else costs
    dealt = _deal(series, costs, count)
    by_op = _fill(_grouped(cases, _sizes_but_length), costs, count)
    if all(by_op) and _longest(by_op, costs) <= SLACK * _longest(dealt, costs):
        dealt = by_op
    mine = {planned.id for planned in dealt[index - 1]}
    return [planned for planned in cases if planned.id in mine]


def _grouped(cases: Iterable[PlannedCase], key: Callable[[Case], Hashable]) -> list[Cases]:
    groups: dict[Hashable, Cases] = defaultdict(list)
    for planned in cases:
        groups[key(planned.case)].append(planned)
    return list(groups.values())


def _sizes_but_length(case: Case) -> Hashable:
    """Return the same key for cases that share most of their kernels."""
    return case.op, ops.sizes_but_length(case), case.dtype


def _cost(cases: Iterable[PlannedCase], costs: Costs) -> int:
    return sum(costs[planned.id] for planned in cases)


def _longest(shards: Iterable[Cases], costs: Costs) -> int:
    return max(_cost(cases, costs) for cases in shards)


def _deal(groups: Collection[Cases], costs: Costs, count: int) -> list[Cases]:
    """Deal the dearest group first, each to the shard that costs least so far."""
    shards: list[Cases] = [[] for _ in range(count)]
    spent = [0] * count
    for group in sorted(groups, key=lambda group: -_cost(group, costs)):
        least = spent.index(min(spent))
        shards[least] += group
        spent[least] += max(_cost(group, costs), 1)  # so that no shard is empty
    return shards


def _fill(groups: Collection[Cases], costs: Costs, count: int) -> list[Cases]:
    """Fill one shard after the other up to the mean, with one op after the other.

    The dearest op comes last, and the dearest group of an op first. A group that fits into no shard
    goes to the shard that costs least so far.
    """
    of_ops: dict[str, int] = defaultdict(int)
    for group in groups:
        of_ops[group[0].case.op] += _cost(group, costs)
    mean = sum(of_ops.values()) // count
    shards: list[Cases] = [[] for _ in range(count)]
    spent = [0] * count

    def order(group: Cases) -> tuple[int, str, int]:
        op = group[0].case.op
        return of_ops[op], op, -_cost(group, costs)

    for group in sorted(groups, key=order):
        cost = _cost(group, costs)
        fitting = (i for i, before in enumerate(spent) if before + cost <= mean)
        place = next(fitting, spent.index(min(spent)))
        shards[place] += group
        spent[place] += cost
    return shards


def canary(
    cases: Sequence[PlannedCase], implementations: Sequence[ImplementationInfo], device: str
) -> PlannedCase | None:
    """Return the case that all shards measure, with the candidates and baselines of this device.

    It is the case with the median work, if possible a forward on one stream. None where nothing
    runs on the device.
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

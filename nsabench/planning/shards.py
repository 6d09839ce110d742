"""Split a plan into shards, which are measured as runs of their own.

The cost of a case is an estimate from its work, so that every host computes the same shards. A
fixed part is warm-up and parity of each implementation, and sampling until its budget is spent. The
rest grows with the work of the case: inputs, the oracle in float64, and every call.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence

from nsabench import ops
from nsabench.errors import UsageError
from nsabench.model.case import Case, FixedCount
from nsabench.model.plan import ImplementationInfo, PlannedCase
from nsabench.model.vocabulary import Direction, Mode, Role

ALL = "1/1"
SLACK = 1.02  # how much longer the longest shard may be, so that an op is in fewer shards
SET_UP_S = 0.05  # parity of an implementation and everything else before its samples
# What a current GPU reaches on an op, not its peak.
FLOP_S, BYTE_S = 1e14, 1e12
# Work of a case besides its samples: inputs, the oracle in float64, and baselines that move far
# more than they must. An H200 took 4 to 20 s for each GB of large cases.
REST_FLOP_S, REST_BYTE_S = 1e13, 1.5e8
Cases = list[PlannedCase]
Costs = Mapping[str, int]  # by case id, in a unit of time


def share(cases: Sequence[PlannedCase], shard: str, costs: Costs | None = None) -> Cases:
    """Return the cases of the shard `i/n`, in the order of the plan.

    Cases that differ only in length stay in one shard, since some checks look along the length.
    Each shard also measures the controls of its ops and compiles their kernels. So cases of one op
    stay together where that makes the longest shard at most 2 % longer. The result depends only on
    the plan, so every host computes the same shards.

    costs: what each case costs; by default its estimate in microseconds.

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
    costs = estimate_costs(cases) if costs is None else costs
    dealt = _deal(series, costs, count)
    # Cases of one key share most of their kernels.
    alike = _grouped(cases, lambda case: (case.op, ops.sizes_but_length(case), case.dtype))
    by_op = _fill(alike, costs, count)
    if all(by_op) and _longest(by_op, costs) <= SLACK * _longest(dealt, costs):
        dealt = by_op
    mine = {planned.id for planned in dealt[index - 1]}
    return [planned for planned in cases if planned.id in mine]


def estimate_costs(cases: Sequence[PlannedCase]) -> Costs:
    """Return microseconds by case id, whole so that the order of a sum does not change it.

    Raises `UsageError` as `ops.work` does.
    """
    ops.count(planned.case for planned in cases)
    return {p.id: round(1e6 * _estimate_s(p.case, len(p.implementations))) for p in cases}


def _estimate_s(case: Case, implementations: int) -> float:
    work, timing = ops.work(case), case.timing
    call_s = max(work.flops / FLOP_S, work.bytes_min / BYTE_S)
    if isinstance(timing.stopping, FixedCount):
        sampling_s = timing.stopping.rounds * implementations * call_s
    else:
        sampling_s = timing.stopping.budget_s
    each_s = SET_UP_S + timing.warmup_s + timing.rotate * call_s
    rest_s = work.flops / REST_FLOP_S + work.bytes_min / REST_BYTE_S
    return implementations * each_s + sampling_s + rest_s


def _grouped(cases: Iterable[PlannedCase], key: Callable[[Case], Hashable]) -> list[Cases]:
    groups: dict[Hashable, Cases] = defaultdict(list)
    for planned in cases:
        groups[key(planned.case)].append(planned)
    return list(groups.values())


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
    plain = (Direction.FORWARD, Mode.STREAM, 1)
    chosen = [p for p in able if (p.case.direction, p.case.mode, p.case.streams) == plain] or able
    ordered = sorted(chosen, key=lambda p: (ops.work(p.case).bytes_min, p.id))
    return ordered[len(ordered) // 2] if ordered else None

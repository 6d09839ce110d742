"""Split a plan into shards, which are measured as runs of their own."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence

from nsabench import ops
from nsabench.errors import UsageError
from nsabench.model.case import FixedCount
from nsabench.model.plan import Device, ImplementationInfo, PlannedCase
from nsabench.model.vocabulary import Direction, Mode, Role

# Seconds for each implementation besides samples and compilation, for example to check outputs.
SET_UP_S = {"cuda": 0.05, "cpu": 0.8}
CPU_CALL_S, CPU_FLOP_S = 0.02, 1e10  # least time of a call; the rate of a few cores in long calls
# The rates that a current GPU reaches on an op, which are below its peak.
FLOP_S, BYTE_S = 1e14, 1e12
# Rates of further work: inputs, the float64 oracle, baselines that move more bytes than they must.
REST_FLOP_S, REST_BYTE_S = 1e13, 1.5e8
Cases = list[PlannedCase]


def share(cases: Sequence[PlannedCase], shard: str) -> Cases:
    """Return the cases of the shard `i/n`, in the order of the plan.

    Cases that differ only in length stay together. Raises `UsageError` for a bad or empty shard.
    """
    match = re.fullmatch(r"(\d+)/(\d+)", shard)
    index, count = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= index <= count:
        raise UsageError(
            f"{shard!r} is not a shard", "write i/n with 1 <= i <= n, for example 2/4."
        )
    series: dict[Hashable, Cases] = defaultdict(list)
    for planned in cases:
        series[ops.series_key(planned.case)].append(planned)
    if index > len(series):
        raise UsageError(
            f"shard {shard} is empty: the {len(cases)} cases form {len(series)} length series "
            f"(cases that differ only in length), and a series is not split",
            f"take no more than {len(series)} shards.",
        )
    # Whole microseconds, so that a sum does not depend on its order.
    costs = {planned.id: round(1e6 * estimate_s(planned)) for planned in cases}
    mine = _deal(series.values(), costs, min(count, len(series)))[index - 1]
    return [planned for planned in cases if planned.id in mine]


def estimate_s(planned: PlannedCase, device: Device = "cuda") -> float:
    work, timing = ops.work(planned.case), planned.case.timing
    implementations = len(planned.implementations)
    call_s, rest_s = max(CPU_CALL_S, work.flops / CPU_FLOP_S), 0.0
    if device == "cuda":
        call_s = max(work.flops / FLOP_S, work.bytes_min / BYTE_S)
        rest_s = work.flops / REST_FLOP_S + work.bytes_min / REST_BYTE_S
    if isinstance(timing.stopping, FixedCount):
        sampling_s = timing.stopping.rounds * implementations * call_s
    else:
        sampling_s = timing.stopping.budget_s
    each_s = SET_UP_S[device] + timing.warmup_s + timing.rotate * call_s
    return implementations * each_s + sampling_s + rest_s


def _deal(series: Iterable[Cases], costs: Mapping[str, int], count: int) -> list[set[str]]:
    """Return the case ids of each shard. Each series, costliest first, joins the cheapest shard."""
    shards: list[set[str]] = [set() for _ in range(count)]
    spent = [0] * count
    priced = [(sum(costs[planned.id] for planned in cases), cases) for cases in series]
    for cost, cases in sorted(priced, key=lambda pair: -pair[0]):
        least = spent.index(min(spent))
        shards[least] |= {planned.id for planned in cases}
        spent[least] += max(cost, 1)  # so that no shard is empty
    return shards


def canary(
    cases: Sequence[PlannedCase], implementations: Sequence[ImplementationInfo], device: str
) -> PlannedCase | None:
    """Return the case that all shards measure: of median work, if possible a plain forward."""
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
    plain = (Direction.FORWARD, Mode.STREAM)
    chosen = [p for p in able if (p.case.direction, p.case.mode) == plain] or able
    ordered = sorted(chosen, key=lambda p: (ops.work(p.case).bytes_min, p.id))
    return ordered[len(ordered) // 2] if ordered else None

"""Which shard of a merged run measured what, and whether their devices agree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, log
from statistics import median

from nsabench import labels
from nsabench.model.plan import Plan
from nsabench.model.vocabulary import Role
from nsabench.output.document import Name, Table, number
from nsabench.output.report.facts import Facts
from nsabench.verdicts import canary
from nsabench.verdicts.canary import Canary

SHOWN = 40  # a fleet has a thousand: those that are furthest from the others


@dataclass(frozen=True)
class Shards:
    """canary: the case that all shards measure, if any. implementation: the one whose times of the
    canary are shown, if any. timed: how many shards have such a time. more: how many shards are not
    in the table."""

    canary: str
    implementation: str
    timed: int
    shards: int
    more: int
    table: Table


def of_run(facts: Facts) -> Shards:
    planned, parts = facts.plan.canary, facts.parts
    ends = {part.plan.run_id: canary.canary_of(part.plan, part.log) for part in parts}
    name = _implementation(facts.plan, ends) if planned is not None else ""
    apart = _apart(ends, name)

    def distance(run_id: str) -> float:
        return abs(log(apart[run_id])) if run_id in apart else inf

    kept = sorted(ends, key=distance, reverse=True)[:SHOWN]
    of_all = not facts.where  # cases and seconds count whole shards
    rows = []
    for part in parts:
        run_id, end = part.plan.run_id, ends[part.plan.run_id]
        if run_id in kept:
            counts = (str(len(part.plan.cases)), f"{part.log.wall_s:.0f}") if of_all else ()
            time = number(end.medians.get(name), ".4g")
            remark = end.disturbed or end.failed.get(name, "") or end.lost or "–"
            ratio = number(apart.get(run_id), ".3f")
            rows.append((part.plan.shard, Name(run_id), *counts, time, ratio, remark))
    counted = ("cases", "seconds") if of_all else ()
    numbers = (*counted, "at its end, ms", "over the median of all")
    return Shards(
        labels.of_case(planned.case) if planned is not None else "",
        name,
        len(apart),
        len(parts),
        max(len(parts) - SHOWN, 0),
        Table("Shards", ("shard", "run", *numbers, "remark"), rows, numbers),
    )


def _implementation(plan: Plan, ends: Mapping[str, Canary]) -> str:
    """The baseline that most shards timed, the fastest if several are; without a baseline, of all
    implementations that a shard timed."""
    baselines = {i.name for i in plan.implementations if i.role is Role.BASELINE}
    times: dict[str, list[float]] = {}
    for end in ends.values():
        for name, ms in end.medians.items():
            times.setdefault(name, []).append(ms)
    names = times.keys() & baselines or times.keys()
    return min(names, key=lambda n: (-len(times[n]), median(times[n]), n), default="")


def _apart(ends: Mapping[str, Canary], name: str) -> dict[str, float]:
    """By run, the time over the median of the shards that were not disturbed."""
    times = {run_id: end.medians[name] for run_id, end in ends.items() if name in end.medians}
    sound = [ms for run_id, ms in times.items() if not ends[run_id].disturbed]
    middle = median(sound or times.values()) if times else 1.0
    return {run_id: ms / middle for run_id, ms in times.items()}

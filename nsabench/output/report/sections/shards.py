"""Which shard of a merged run measured what, and did its device time the same as the others'?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, log
from statistics import median
from typing import Any

from nsabench.assessment import canary, labels
from nsabench.assessment.canary import Canary
from nsabench.model.journal import Contents
from nsabench.model.plan import MergedShard, Plan
from nsabench.model.vocabulary import Role
from nsabench.output.report.facts import Facts

ORDER = 57
TITLE = "Shards"
QUESTION = "Which shard measured what, and did their devices agree?"
SHOWN = 40  # of a fleet there are a thousand: those that are furthest from the others


@dataclass(frozen=True)
class Row:
    """A shard. wall_s: of all its passes, the canary's too. canary_ms: its time of the canary,
    None where it has none; apart: that over the median of the shards that were not disturbed;
    remark: what became of it."""

    shard: str
    run_id: str
    cases: int
    wall_s: float
    canary_ms: float | None
    apart: float | None
    remark: str


@dataclass(frozen=True)
class _Read:
    """What the journal holds of a shard."""

    shard: MergedShard
    part: Plan
    wall_s: float
    canary: Canary


def applies(facts: Facts) -> bool:
    return bool(facts.plan.shards)


def context(facts: Facts) -> dict[str, Any]:
    """canary: the case, empty where the plan has none; implementation: whose times of it are
    shown, empty where nobody has any; timed: on how many shards."""
    planned = facts.plan.canary
    read = [_read(facts, shard, part) for shard, part in facts.plan.parts()]
    name = _judging(facts.plan, read) if planned is not None else ""
    rows = _rows(read, name)
    return {
        "rows": _furthest(rows),
        "more": max(len(rows) - SHOWN, 0),
        "canary": labels.of_case(planned.case) if planned is not None else "",
        "implementation": name,
        "timed": sum(row.canary_ms is not None for row in rows),
        "shards": len(rows),
        "of_all": not facts.where,  # cases and seconds are those of whole shards
    }


def _read(facts: Facts, shard: MergedShard, part: Plan) -> _Read:
    contents = facts.contents.by_run.get(shard.run_id, Contents())
    wall_s = sum(entry.wall_s for entry in contents.entries)
    return _Read(shard, part, wall_s, canary.of_contents(contents))


def _judging(plan: Plan, read: Sequence[_Read]) -> str:
    """The baseline that most shards timed, the fastest if several are; where there is none, of all
    that any shard timed."""
    baselines = {i.name for i in plan.implementations if i.role is Role.BASELINE}
    times: dict[str, list[float]] = {}
    for one in read:
        for name, ms in one.canary.medians.items():
            times.setdefault(name, []).append(ms)
    names = times.keys() & baselines or times.keys()
    return min(names, key=lambda n: (-len(times[n]), median(times[n]), n), default="")


def _rows(read: Sequence[_Read], name: str) -> list[Row]:
    timed = [one.canary for one in read if name in one.canary.medians]
    sound = [one for one in timed if not one.disturbed]
    middle = median(one.medians[name] for one in sound or timed) if timed else 0.0
    made = []
    for one in read:
        canary_ms = one.canary.medians.get(name)
        made.append(
            Row(
                shard=one.shard.shard,
                run_id=one.shard.run_id,
                cases=len(one.part.cases),
                wall_s=one.wall_s,
                canary_ms=canary_ms,
                apart=canary_ms / middle if canary_ms is not None else None,
                remark=one.canary.disturbed or one.canary.failed.get(name, "") or one.canary.lost,
            )
        )
    return made


def _furthest(rows: Sequence[Row]) -> list[Row]:
    """In their order."""

    def nearness(at: int) -> float:
        apart = rows[at].apart
        return -inf if apart is None else -abs(log(apart))

    shown = sorted(range(len(rows)), key=nearness)[:SHOWN]
    return [rows[at] for at in sorted(shown)]

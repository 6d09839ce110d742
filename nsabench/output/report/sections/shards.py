"""Which shard of a merged run measured what, and did its device time the same as the others'?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from nsabench.assessment import canary, labels
from nsabench.model.journal import Contents
from nsabench.model.vocabulary import PassName
from nsabench.output.report.facts import Facts

ORDER = 55
TITLE = "Shards"
QUESTION = "Which shard measured what, and did their devices agree?"
SHOWN = 40  # of a fleet there are a thousand; who is not as the others is among the problems


@dataclass(frozen=True)
class Row:
    """A shard. wall_s: of all its passes. Times of the canary in ms, None where it has none: while
    its neighbours waited, while they measured it as well, and at its end; apart: the last over the
    median of all shards."""

    shard: str
    run_id: str
    cases: int
    wall_s: float
    alone: float | None
    together: float | None
    end: float | None
    apart: float | None


def applies(facts: Facts) -> bool:
    return bool(facts.plan.shards)


def context(facts: Facts) -> dict[str, Any]:
    planned, name = facts.plan.canary, timed_by_most(facts)
    made = rows(facts)
    return {
        "rows": made[:SHOWN],
        "more": max(len(made) - SHOWN, 0),
        "canary": labels.of_case(planned.case) if planned is not None else "",
        "implementation": name,
        "neighbours": bool(facts.plan.neighbours),
    }


def timed_by_most(facts: Facts) -> str:
    """The implementation that most shards timed on their canary, the fastest if several are; empty
    where none did."""
    times: dict[str, list[float]] = {}
    for shard in facts.plan.shards:
        for name, ms in _medians(facts, shard.run_id, PassName.CANARY).items():
            times.setdefault(name, []).append(ms)
    return min(times, key=lambda name: (-len(times[name]), median(times[name])), default="")


def rows(facts: Facts) -> list[Row]:
    """A row a shard, in their order."""
    name = timed_by_most(facts)
    ends = [
        ms
        for shard in facts.plan.shards
        if (ms := _medians(facts, shard.run_id, PassName.CANARY).get(name)) is not None
    ]
    made = []
    for shard, part in facts.plan.parts():
        alone, together, end = (
            _medians(facts, shard.run_id, look).get(name)
            for look in (PassName.ALONE, PassName.TOGETHER, PassName.CANARY)
        )
        wall_s = sum(entry.wall_s for entry in _contents(facts, shard.run_id).entries)
        apart = end / median(ends) if end is not None else None
        made.append(
            Row(shard.shard, shard.run_id, len(part.cases), wall_s, alone, together, end, apart)
        )
    return made


def _contents(facts: Facts, run_id: str) -> Contents:
    return facts.contents.by_run.get(run_id, Contents())


def _medians(facts: Facts, run_id: str, look: PassName) -> Mapping[str, float]:
    return canary.of_contents(_contents(facts, run_id), look).medians

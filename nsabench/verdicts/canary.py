"""Hosts held to each other: all shards of a plan measure one case, and where the medians of a host
are not those of the others, its times decide nothing beside theirs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from nsabench.checks.clocks import disturbances
from nsabench.checks.finding import Effect, Finding
from nsabench.model.log import Log
from nsabench.model.plan import Plan
from nsabench.model.vocabulary import BENIGN, Purpose, Status
from nsabench.verdicts.attempts import states_of
from nsabench.verdicts.statistics import quantile

CHECK = "canary"
# Medians of one implementation in two processes of one host differ by this much
# (docs/explanation/measurement.md).
APART = 0.03


@dataclass(frozen=True)
class Canary:
    """What a shard took for the case that all measure. medians: ms, by implementation, of those
    that were right; disturbed: why they are not to be relied on; empty where nothing is known.
    failed: by implementation, what became of those that were not right; of those that declined it
    only where none was timed; lost: why the process that measured it was."""

    medians: Mapping[str, float]
    disturbed: str = ""
    failed: Mapping[str, str] = field(default_factory=dict)
    lost: str = ""


def canary_of(plan: Plan, log: Log) -> Canary:
    """Return what the log of a shard says of its canary."""
    medians: dict[str, float] = {}
    failed: dict[str, str] = {}
    disturbed = lost = ""
    for state in states_of(plan, log, Purpose.CANARY).values():
        disturbed = next(disturbances(list(state.conditions.values())), "")
        medians = {
            o.implementation: quantile(o.samples.time_ms, 0.5)
            for o in state.observations
            if o.status is Status.OK and o.samples.time_ms
        }
        failed = {
            o.implementation: f"{o.status}: {o.reason}" if o.reason else str(o.status)
            for o in state.observations
            if o.status is not Status.OK and not (medians and o.status in BENIGN)
        }
        lost = state.reason
    return Canary(medians, disturbed, failed, lost)


def outlying(canaries: Mapping[str, Canary]) -> dict[str, str]:
    """The shards whose times decide nothing beside those of the others, by name, each with why.

    Of each implementation that more than half of the shards timed, those that count are the largest
    set whose medians lie within 3 % of each other. It must be more than half of them: else nobody
    knows which is the outlier, and none counts. A shard on which such an implementation failed, or
    that timed none of them, is none of them. What fewer shards timed says nothing of the others.
    """
    if len(canaries) < 2:
        return {}
    why = {
        name: f"the case that all shards measure was disturbed: {canary.disturbed}"
        for name, canary in canaries.items()
        if canary.disturbed
    }
    timed = _timed_by_most(c.medians for c in canaries.values() if not c.disturbed)
    for name, canary in canaries.items():
        failed = next((one for one in sorted(canary.failed) if one in timed), "")
        if not canary.medians:
            reason = canary.lost or next(iter(canary.failed.values()), "")
            untimed = "it did not time the case that all shards measure"
            why[name] = f"{untimed} ({reason})" if reason else untimed
        elif failed:
            why.setdefault(
                name,
                f"{failed}, which other shards timed, failed on the case that all shards measure "
                f"({canary.failed[failed]})",
            )
    there = {name: c.medians for name, c in canaries.items() if name not in why}
    if len(there) < 2:
        return why
    common = _timed_by_most(there.values())
    if not common:
        return why | dict.fromkeys(there, "no implementation was timed on most shards' canaries")
    for name, medians in there.items():
        if common.isdisjoint(medians):
            why[name] = "it timed no implementation that most shards timed on their canary"
    for implementation in sorted(common):
        medians = {
            n: times[implementation] for n, times in there.items() if implementation in times
        }
        within = _largest_set(medians)
        lowest, highest = (min(within.values()), max(within.values())) if within else (0.0, 0.0)
        for name in medians.keys() - within.keys():
            if within:
                others = f"{lowest:.4g} to {highest:.4g} ms in the others"
            else:
                least, most = min(medians.values()), max(medians.values())
                others = f"{least:.4g} to {most:.4g} ms in all, no more than half of which agree"
            why.setdefault(
                name,
                f"{implementation} took {medians[name]:.4g} ms for the case that all shards "
                f"measure, and {others}: over {APART:.0%} apart",
            )
    return why


def _timed_by_most(shards: Iterable[Mapping[str, float]]) -> set[str]:
    """The implementations that more than half of the shards have a median of."""
    each = list(shards)
    counts = Counter(one for medians in each for one in medians)
    return {one for one, count in counts.items() if 2 * count > len(each)}


def _largest_set(medians: Mapping[str, float]) -> dict[str, float]:
    """The most that lie within `APART` of each other, the closest of them where several are as
    many; none where they are no more than half."""
    ordered = sorted(medians.items(), key=lambda item: (item[1], item[0]))
    best: Sequence[tuple[str, float]] = ()
    end = 0
    for start, (_, least) in enumerate(ordered):
        while end < len(ordered) and ordered[end][1] <= least * (1 + APART):
            end += 1
        found = ordered[start:end]
        if len(found) > len(best) or (len(found) == len(best) and _spread(found) < _spread(best)):
            best = found
    return dict(best) if 2 * len(best) > len(ordered) else {}


def _spread(ordered: Sequence[tuple[str, float]]) -> float:
    return ordered[-1][1] / ordered[0][1]


def finding(why: str) -> Finding:
    """What is said against all times of an outlying shard."""
    return Finding(CHECK, Effect.INCONCLUSIVE, why)

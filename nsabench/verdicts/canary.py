"""Compare the hosts of a merged run by the case that all shards measure.

If a host's medians differ from the other hosts' medians, its times decide nothing.
"""

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
    """What a shard measured of the case that all measure.

    medians: ms, by implementation that was right. disturbed: why the times are unreliable. failed:
    what became of the others, by implementation. Implementations that declined the case are in it
    only if none was timed. lost: why the process that measured it was lost.
    """

    medians: Mapping[str, float]
    disturbed: str = ""
    failed: Mapping[str, str] = field(default_factory=dict)
    lost: str = ""


def canary_of(plan: Plan, log: Log) -> Canary:
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
    """Return the shards whose times decide nothing, by name, each with the reason.

    An implementation counts if more than half of the shards timed it. For each, the largest set of
    shards whose medians are within 3 % of each other is right. If the set is not more than half,
    the outlier is unknown, and every shard is one. A shard on which such an implementation failed,
    or that timed none, is also an outlier.
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
        failed = next((name for name in sorted(canary.failed) if name in timed), "")
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
    kept = {name: c.medians for name, c in canaries.items() if name not in why}
    if len(kept) < 2:
        return why
    common = _timed_by_most(kept.values())
    if not common:
        return why | dict.fromkeys(kept, "no implementation was timed on most shards' canaries")
    for name, medians in kept.items():
        if common.isdisjoint(medians):
            why[name] = "it timed no implementation that most shards timed on their canary"
    for implementation in sorted(common):
        medians = {n: times[implementation] for n, times in kept.items() if implementation in times}
        within = _find_largest_set(medians)
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
    shards = list(shards)
    counts = Counter(name for medians in shards for name in medians)
    return {name for name, count in counts.items() if 2 * count > len(shards)}


def _find_largest_set(medians: Mapping[str, float]) -> dict[str, float]:
    """Return the largest set of medians within `APART` of each other, and the closest of equally
    large sets. It is empty if it holds no more than half of the medians."""
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
    return Finding(CHECK, Effect.INCONCLUSIVE, why)

"""Compare the hosts of a merged run by the case that all shards measure.

If a host's medians differ from the other hosts' medians, its times decide nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
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

    medians: ms, by implementation that was right. failed: what became of the others, by
    implementation. Implementations that declined the case are in it only if none was timed.
    disturbed: why the times are unreliable. lost: why the process that measured it was lost.
    """

    medians: Mapping[str, float]
    disturbed: str = ""
    failed: Mapping[str, str] = field(default_factory=dict)
    lost: str = ""


def canary_of(plan: Plan, log: Log) -> Canary:
    states = states_of(plan, log, Purpose.CANARY)
    if not states:
        return Canary({})
    [state] = states.values()
    medians = {
        o.implementation: quantile(o.samples.time_ms, 0.5)
        for o in state.observations
        if o.status is Status.OK and o.samples.time_ms
    }
    failed = {
        o.implementation: f"{o.status}: {o.reason}"
        for o in state.observations
        if o.status is not Status.OK and not (medians and o.status in BENIGN)
    }
    disturbed = next(disturbances(list(state.conditions.values())), "")
    return Canary(medians, disturbed, failed, state.reason)


def outlying(canaries: Mapping[str, Canary]) -> dict[str, str]:
    """Return the shards whose times decide nothing, by name, each with the reason.

    An implementation counts if more than half of the shards timed it. For each, the largest set of
    shards whose medians are within 3 % of each other is right. If the set is not more than half,
    the outlier is unknown, and every shard is one. A shard on which such an implementation failed,
    or that timed none, is also an outlier.
    """
    if len(canaries) < 2:
        return {}
    common = _timed_by_most(c.medians for c in canaries.values() if not c.disturbed)
    why = {name: reason for name, c in canaries.items() if (reason := _object(c, common))}
    kept = {name: c.medians for name, c in canaries.items() if name not in why}
    if len(kept) < 2:
        return why
    common = _timed_by_most(kept.values())
    for name, medians in kept.items():
        if common.isdisjoint(medians):
            why[name] = "it timed no implementation that most shards timed on their canary"
    for implementation in sorted(common):
        medians = {n: times[implementation] for n, times in kept.items() if implementation in times}
        within = _find_largest_set(medians)
        others = [medians[name] for name in within or medians]
        for name in medians.keys() - within:
            why.setdefault(
                name,
                f"{implementation} took {medians[name]:.4g} ms for the case that all shards "
                f"measure, and {min(others):.4g} to {max(others):.4g} ms "
                f"{'in the others' if within else 'in all'}: over {APART:.0%} apart",
            )
    return why


def _object(canary: Canary, common: set[str]) -> str:
    """Return what a shard's own canary says against it. common: implementations that count."""
    if not canary.medians:
        reason = canary.lost or next(iter(canary.failed.values()), "")
        untimed = "it did not time the case that all shards measure"
        return f"{untimed} ({reason})" if reason else untimed
    if canary.disturbed:
        return f"the case that all shards measure was disturbed: {canary.disturbed}"
    for name in sorted(common.intersection(canary.failed)):
        return (
            f"{name}, which other shards timed, failed on the case that all shards measure "
            f"({canary.failed[name]})"
        )
    return ""


def _timed_by_most(shards: Iterable[Mapping[str, float]]) -> set[str]:
    shards = list(shards)
    counts = Counter(name for medians in shards for name in medians)
    return {name for name, count in counts.items() if 2 * count > len(shards)}


def _find_largest_set(medians: Mapping[str, float]) -> set[str]:
    """Return the largest set of medians within `APART` of each other, and the closest of equally
    large sets. It is empty if it holds no more than half of the medians."""
    found: tuple[int, float, set[str]] = (0, 0.0, set())
    for least in sorted(medians.values()):
        names = {name for name, ms in medians.items() if least <= ms <= least * (1 + APART)}
        width = max(medians[name] for name in names) / least
        if (len(names), -width) > (found[0], -found[1]):
            found = len(names), width, names
    return found[2] if 2 * found[0] > len(medians) else set()


def finding(why: str) -> Finding:
    return Finding(CHECK, Effect.INCONCLUSIVE, why)

"""Assemble the results of a run. Each shard of a merged run is judged on its own first.

A shard has the ceilings and controls of its own host. The canary, a case that all shards measure,
compares the hosts: if a host's medians differ from the others', its times decide nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from nsabench.checks import Effect, Finding, by_gravity
from nsabench.checks.timing import find_disturbances
from nsabench.model.log import Log
from nsabench.model.plan import Plan
from nsabench.model.record import Record
from nsabench.model.vocabulary import BENIGN, Purpose, Status
from nsabench.verdicts.attempts import states_of
from nsabench.verdicts.results import Results, assess
from nsabench.verdicts.statistics import quantile

CANARY = "canary"  # the check
# Medians of one implementation in two processes of one host differ by this much
# (docs/explanation/measurement.md).
APART = 0.03


@dataclass(frozen=True)
class RunLog:
    plan: Plan
    log: Log


def assemble(run_id: str, parts: Sequence[RunLog]) -> Results:
    """Apply the checks to a run and judge its candidates. run_id: of the whole run."""
    if len(parts) == 1 and parts[0].plan.run_id == run_id:
        return assess(parts[0].plan, parts[0].log).results()
    canaries = {name_shard(part.plan): read_canary(part.plan, part.log) for part in parts}
    outliers = find_outliers(canaries)
    records: list[Record] = []
    findings: dict[Finding, None] = {}
    for part in parts:
        name = name_shard(part.plan)
        known = []
        if name in outliers:
            known = [Finding(CANARY, Effect.INCONCLUSIVE, f"{name}: {outliers[name]}")]
        results = assess(part.plan, part.log, known).results()
        records += [_set_run_id(record, run_id) for record in results.records]
        # Many shards have the same findings about checks that no control proved.
        for finding in results.findings:
            findings |= dict.fromkeys(_name_shard_in(finding, name, part.plan))
    return Results(records, by_gravity(findings))


def name_shard(plan: Plan) -> str:
    return f"shard {plan.shard} (run {plan.run_id})"


def _set_run_id(record: Record, run_id: str) -> Record:
    comparisons = tuple(replace(c, run_id=run_id) for c in record.comparisons)
    return replace(record, run_id=run_id, comparisons=comparisons)


def _name_shard_in(finding: Finding, shard: str, plan: Plan) -> Iterator[Finding]:
    """Yield a finding about a whole shard as one about each of its cases."""
    is_about_cases = finding.case_id or finding.effect in (Effect.UNPROVEN, Effect.NOTE)
    if is_about_cases or finding.check == CANARY:  # whose sentence names the shard
        yield finding
        return
    named = replace(finding, sentence=f"{shard}: {finding.sentence}")
    if finding.groups:
        yield named
    else:
        yield from (replace(named, case_id=planned.id) for planned in plan.cases)


@dataclass(frozen=True)
class Canary:
    """What a shard measured of the case that all measure."""

    medians: Mapping[str, float]  # ms, by implementation
    disturbed: str = ""  # why the times are unreliable
    failed: Mapping[str, str] = field(default_factory=dict)  # why, by implementation
    lost: str = ""  # why the process that measured it was lost


def read_canary(plan: Plan, log: Log) -> Canary:
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
    disturbed = next(find_disturbances(list(state.conditions.values())), "")
    return Canary(medians, disturbed, failed, state.reason)


def find_outliers(canaries: Mapping[str, Canary]) -> dict[str, str]:
    """Return the shards whose times decide nothing, by name, each with the reason.

    Each implementation that most shards timed is compared. The largest set of shards within 3 % of
    each other is right if it is more than half. Else every shard is an outlier.
    """
    if len(canaries) < 2:
        return {}
    common = _timed_by_most(c.medians for c in canaries.values() if not c.disturbed)
    why = {name: reason for name, c in canaries.items() if (reason := _find_objection(c, common))}
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


def _find_objection(canary: Canary, common: set[str]) -> str:
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
    """Return the largest, then closest, set of medians within `APART` if it is more than half."""
    found: tuple[int, float, set[str]] = (0, 0.0, set())
    for least in sorted(medians.values()):
        names = {name for name, ms in medians.items() if least <= ms <= least * (1 + APART)}
        width = max(medians[name] for name in names) / least
        if (len(names), -width) > (found[0], -found[1]):
            found = len(names), width, names
    return found[2] if 2 * found[0] > len(medians) else set()

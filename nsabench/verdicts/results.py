"""Make checked and judged records from plans and logs: the rows of records.parquet.

Each shard of a merged run is judged on its own, with the ceilings and controls of its host. The
canary, a case that all shards measure, compares the hosts. If a host has other medians than most,
its times decide nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from nsabench import labels, ops
from nsabench.checks import DeviceLimits, Effect, Finding, by_gravity, run_checks
from nsabench.checks.cases import by_case
from nsabench.checks.controls import CHECK, find_unproven, guarded_regime
from nsabench.checks.finding import Group
from nsabench.checks.parity import check_parity
from nsabench.checks.roofline import check_roofline, least_time
from nsabench.checks.timing import check_ordering, find_time_doubts
from nsabench.errors import UsageError
from nsabench.model.log import Log, WriterSession
from nsabench.model.plan import Plan
from nsabench.model.record import Comparison, Record
from nsabench.model.vocabulary import BENIGN, Catch, Purpose, Reference, Regime, Role, Status
from nsabench.verdicts.attempts import CaseState, states_of
from nsabench.verdicts.records import STATUS_OF, apply_findings, make_records, without_times
from nsabench.verdicts.statistics import quantile
from nsabench.verdicts.verdict import compare_records, find_caution, revise_records

CANARY = "canary"  # the name of the check
# Medians of one implementation in two processes of one host differ by up to this share
# (docs/explanation/measurement.md).
APART = 0.03
# Checks that doubt a time itself, and not only its ratio to another time.
OF_TIMES = ("timer", "clocks", "scaling", CANARY)


@dataclass(frozen=True)
class Results:
    records: list[Record]
    findings: list[Finding]

    @property
    def failures(self) -> list[str]:
        """A line for each failure. A control fails if it is missed."""
        # These findings say that no control reached a check, so nothing is decided.
        lines = [
            f.sentence
            for f in self.findings
            if f.check == CHECK and f.effect is Effect.INVALID and not f.implementation
        ]
        for record in self.records:
            where = f"{record.implementation} on {labels.case_with_id(record)}"
            if record.caught is Catch.MISSED:
                lines.append(f"control {where} was not caught by {record.caught_by}")
            elif _has_failed(record):
                lines.append(f"{where}: {record.status}: {record.diagnosis or record.reason}")
        return lines

    @property
    def unproven(self) -> list[str]:
        return [f.sentence for f in self.findings if f.effect is Effect.UNPROVEN]

    @property
    def found_while_measuring(self) -> list[Finding]:
        """Failures of candidates and baselines that were found while measuring, not by a check."""
        by_checks = {(f.case_id, f.implementation) for f in self.findings if f.effect in STATUS_OF}
        findings = []
        for record in self.records:
            if _has_failed(record) and record.key not in by_checks:
                wrong = record.status is Status.WRONG
                check, effect = ("parity", Effect.WRONG) if wrong else ("outcome", Effect.INVALID)
                sentence = f"{record.status}: {record.reason}"
                findings.append(Finding(check, effect, sentence, *record.key))
        return findings


def _has_failed(record: Record) -> bool:
    return record.role is not Role.CONTROL and record.status not in BENIGN


@dataclass(frozen=True)
class Assessment:
    """A log after the checks. The records have the verdicts of the main pass."""

    plan: Plan
    log: Log
    session: WriterSession  # holds the ceilings to use
    limits: DeviceLimits
    records: list[Record]
    findings: list[Finding]

    def comparisons(self) -> list[Comparison]:
        """Return the comparisons, revised by all passes so far, to decide what to measure next."""
        records = self._revise_records()
        candidates = [record for record in records if record.role is Role.CANDIDATE]
        compared = [record.compared(regime) for regime in Regime for record in candidates]
        of_all = [comparison for record in records for comparison in record.comparisons]
        with_alternatives = [c for c in of_all if c.reference is Reference.ALTERNATIVE]
        return [c for c in compared if c is not None] + with_alternatives

    def results(self) -> Results:
        notes = by_case(f for f in self.findings if f.effect is Effect.NOTE)
        doubts = [f for f in self.findings if f.check in OF_TIMES]
        doubts = [f for f in doubts if f.effect is Effect.INCONCLUSIVE]
        cases = by_case(self.records)
        records = []
        for record in self._revise_records():
            noted = [f.sentence for f in notes.get(record.case_id, ()) if f.concerns(record)]
            floor, time_ms = least_time(record, self.limits), record.median_ms
            doubted = [f.sentence for f in doubts if f.concerns(record)]
            records.append(
                replace(
                    record,
                    notes="; ".join(filter(None, (record.notes, *noted))),
                    roofline_fraction=floor.ms / time_ms if floor and time_ms else None,
                    time_doubt="; ".join(doubted) if time_ms is not None else "",
                    caution=find_caution(record, cases[record.case_id]),
                )
            )
        return Results(records, self.findings)

    def _revise_records(self) -> list[Record]:
        confirmations = self._check_states(Purpose.CONFIRMATION)
        isolated = self._check_states(Purpose.ISOLATED)
        return revise_records(self.plan, self.records, confirmations, isolated)

    def _check_states(self, purpose: Purpose) -> Mapping[str, CaseState]:
        states = states_of(self.plan, self.log, purpose)
        return {case_id: self._check_state(state) for case_id, state in states.items()}

    def _check_state(self, state: CaseState) -> CaseState:
        records = make_records(self.plan, self.session, state)
        checks = (check_parity, check_ordering, check_roofline)
        findings = [finding for check in checks for finding in check(records, self.limits)]
        records = apply_findings(records, findings)
        observations = []
        for record, observation in zip(records, state.observations, strict=True):
            if observation.status is Status.UNSUPPORTED:  # it was right in the main pass
                reason = f"it declined the case after a right answer: {observation.reason}"
                observation = without_times(observation, Status.CRASHED, reason)
            elif observation.status is not record.status:
                observation = without_times(observation, record.status, record.reason)
            observations.append(observation)
        return replace(state, observations=observations)


def assess(plan: Plan, log: Log, known: Sequence[Finding] = ()) -> Assessment:
    """Apply the checks to a log, and add findings `known`. Raises `UsageError` for a bad log."""
    refuse_other_log(plan, log)
    ops.refuse_other(plan)
    if not log.sessions:
        raise UsageError("the log is empty: nothing was measured", "resume with --resume RUN.")
    states = states_of(plan, log, Purpose.MAIN).values()
    session = log.sessions[0].model_copy(update={"ceilings": log.ceilings})
    limits = DeviceLimits.from_run(session.ceilings)
    records = [record for state in states for record in make_records(plan, session, state)]
    findings, records = run_checks(records, limits)
    findings = [*findings, *known]
    records = compare_records(apply_findings(_name_unproven(records), findings), findings)
    return Assessment(plan, log, session, limits, records, findings)


def _name_unproven(records: Sequence[Record]) -> list[Record]:
    unproven: dict[Group, list[str]] = {}
    for lack in find_unproven(records):
        if guarded_regime(lack.check) is None:
            unproven.setdefault(lack.group, []).append(lack.check)
    return [
        replace(r, unproven=", ".join(unproven.get(Group.from_record(r), ())))
        if r.role is Role.CANDIDATE
        else r
        for r in records
    ]


def refuse_other_log(plan: Plan, log: Log) -> None:
    names = {planned.id: set(planned.implementations) for planned in plan.cases}
    if plan.canary is not None:
        names.setdefault(plan.canary.id, set(plan.canary.implementations))
    wrong = ""
    if any(session.run_id != plan.run_id for session in log.sessions):
        wrong = f"is from another run than {plan.run_id}"
    elif any(session.plan_sha256 != plan.sha256 for session in log.sessions):
        wrong = "was written for another plan than plan.json"
    for attempt in log.attempts:
        case_id = attempt.job.case.id
        if not set(attempt.job.implementations) <= names.get(case_id, set()):
            wrong = f"holds an implementation of case {case_id} that the plan does not have"
        observed = tuple(observation.implementation for observation in attempt.observations)
        if attempt.has_answer and observed != attempt.job.implementations:
            wrong = f"holds observations of case {case_id} that its job did not ask for"
        if any(o.attempt != attempt.job.attempt for o in attempt.observations):
            wrong = f"holds observations of case {case_id} that are of another attempt"
    if wrong:
        raise UsageError(
            f"the log {wrong}: plan.json and log.jsonl do not belong together",
            "restore the run folder, or start a new run.",
        )


@dataclass(frozen=True)
class RunLog:
    plan: Plan
    log: Log


def assemble(run_id: str, parts: Sequence[RunLog]) -> Results:
    """Apply the checks to a run and judge its candidates. `run_id` is the id of the whole run."""
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
        # Shards share findings about checks that no control proved: keep equal findings once.
        for finding in results.findings:
            findings |= dict.fromkeys(_name_shard_in(finding, name, part.plan))
    return Results(records, by_gravity(findings))


def name_shard(plan: Plan) -> str:
    return f"shard {plan.shard} (run {plan.run_id})"


def _set_run_id(record: Record, run_id: str) -> Record:
    comparisons = tuple(replace(c, run_id=run_id) for c in record.comparisons)
    return replace(record, run_id=run_id, comparisons=comparisons)


def _name_shard_in(finding: Finding, shard: str, plan: Plan) -> Iterator[Finding]:
    """Name the shard in a finding. A finding about the whole shard is yielded for each case."""
    is_about_cases = finding.case_id or finding.effect in (Effect.UNPROVEN, Effect.NOTE)
    if is_about_cases or finding.check == CANARY:  # a sentence of the canary names the shard
        yield finding
        return
    named = replace(finding, sentence=f"{shard}: {finding.sentence}")
    if finding.groups:
        yield named
    else:
        yield from (replace(named, case_id=planned.id) for planned in plan.cases)


@dataclass(frozen=True)
class Canary:
    medians: Mapping[str, float]  # ms, by implementation
    disturbed: str = ""  # why the times are unreliable
    failed: Mapping[str, str] = field(default_factory=dict)  # the reason, by implementation
    lost: str = ""  # why the process that measured the canary was lost


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
    disturbed = next(find_time_doubts(list(state.conditions.values())), "")
    return Canary(medians, disturbed, failed, state.reason)


def find_outliers(canaries: Mapping[str, Canary]) -> dict[str, str]:
    """Return the shards whose times decide nothing, by name, each with the reason.

    Shards without sound times are outliers. Others are compared by each implementation that most
    timed. If over half of its times are within 3 %, the other shards are outliers; otherwise all.
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
            why[name] = "of what most shards timed on the case that all measure, it timed nothing"
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
    """Return the most shards with medians within `APART`, if over half; in a tie, the closest."""
    found: tuple[int, float, set[str]] = (0, 0.0, set())
    for least in sorted(medians.values()):
        names = {name for name, ms in medians.items() if least <= ms <= least * (1 + APART)}
        width = max(medians[name] for name in names) / least
        if (len(names), -width) > (found[0], -found[1]):
            found = len(names), width, names
    return found[2] if 2 * found[0] > len(medians) else set()

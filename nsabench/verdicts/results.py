"""Make checked and judged records from a plan and a log: the rows of records.parquet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from nsabench import labels, ops
from nsabench.checks import DeviceLimits, Effect, Finding, run_checks
from nsabench.checks.cases import by_case
from nsabench.checks.controls import CHECK, find_unproven, guarded_regime
from nsabench.checks.finding import Group
from nsabench.checks.parity import check_parity
from nsabench.checks.roofline import check_roofline, least_time
from nsabench.checks.timing import check_ordering
from nsabench.errors import UsageError
from nsabench.model.log import Log, Session
from nsabench.model.plan import Plan
from nsabench.model.record import Comparison, Record
from nsabench.model.vocabulary import BENIGN, Catch, Purpose, Reference, Regime, Role, Status
from nsabench.verdicts.attempts import CaseState, states_of
from nsabench.verdicts.records import STATUS_OF, apply_findings, make_records, without_times
from nsabench.verdicts.revision import revise_records
from nsabench.verdicts.verdict import compare_records, find_caution

# Checks of a time, not of its ratio to another.
OF_TIMES = ("timer", "clocks", "scaling", "canary")


@dataclass(frozen=True)
class Results:
    records: list[Record]
    findings: list[Finding]

    @property
    def failures(self) -> list[str]:
        """A line for each failure. Controls fail if they are not caught."""
        # Findings about the whole run: no control tested a check.
        lines = [
            f.sentence
            for f in self.findings
            if f.check == CHECK and f.effect is Effect.INVALID and not f.implementation
        ]
        for record in self.records:
            where = f"{record.implementation} on {labels.named(record)}"
            if record.caught is Catch.MISSED:
                lines.append(f"control {where} was not caught by {record.caught_by}")
            elif _has_failed(record):
                lines.append(f"{where}: {record.status}: {record.reason}")
        return lines

    @property
    def unproven(self) -> list[str]:
        return [f.sentence for f in self.findings if f.effect is Effect.UNPROVEN]

    @property
    def found_while_measuring(self) -> list[Finding]:
        """The failures of candidates and baselines that the worker found, not a check."""
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
    """A log after the checks. records: with the verdicts of the main pass."""

    plan: Plan
    log: Log
    session: Session  # with the ceilings to use
    limits: DeviceLimits
    records: list[Record]
    findings: list[Finding]

    def comparisons(self) -> list[Comparison]:
        """Return the comparisons after the later passes so far, which choose the next cases."""
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
    """Apply the checks. Raises `UsageError` if the log is empty or not from this plan."""
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
        wrong = f"is not of run {plan.run_id}"
    elif any(session.plan_sha256 != plan.sha256 for session in log.sessions):
        wrong = "was written under another plan than plan.json holds now"
    for attempt in log.attempts:
        case_id = attempt.job.case.id
        if not set(attempt.job.implementations) <= names.get(case_id, set()):
            wrong = f"holds case {case_id}, which is not in the plan like that"
        observed = tuple(observation.implementation for observation in attempt.observations)
        if attempt.has_answer and observed != attempt.job.implementations:
            wrong = f"holds other implementations of case {case_id} than were measured"
        if any(o.attempt != attempt.job.attempt for o in attempt.observations):
            wrong = f"holds observations of case {case_id} that are of another attempt"
    if wrong:
        raise UsageError(
            f"the log {wrong}: plan.json and log.jsonl do not belong together",
            "restore the run folder, or start a new run.",
        )

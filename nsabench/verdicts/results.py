"""Make checked and judged records from a plan and a log: the rows of records.parquet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from nsabench import checks, ops
from nsabench.checks import ordering, parity, proofs, roofline
from nsabench.checks.finding import Effect, Finding, Group
from nsabench.checks.limits import Limits, least
from nsabench.checks.series import by_case
from nsabench.errors import UsageError
from nsabench.model.log import Log, Session
from nsabench.model.measurement import Observation
from nsabench.model.plan import Plan
from nsabench.model.record import Comparison, Key, Record
from nsabench.model.vocabulary import BENIGN, Purpose, Reference, Regime, Role, Status, Verdict
from nsabench.verdicts.attempts import CaseState, states_of
from nsabench.verdicts.caution import caution
from nsabench.verdicts.records import failed, of_state, with_findings, without_times
from nsabench.verdicts.verdict import ALL_OWN, judge, revise

# Checks of a time, not of its ratio to another.
OF_TIMES = ("timer", "clocks", "scaling", "canary")


@dataclass(frozen=True)
class Results:
    records: list[Record]
    findings: list[Finding]


@dataclass(frozen=True)
class Assessed:
    """A log after the checks. records: with the verdicts of the main pass."""

    plan: Plan
    session: Session
    limits: Limits
    records: list[Record]
    findings: list[Finding]

    def judgements(self, log: Log) -> list[Comparison]:
        """Return the comparisons after the later passes so far: of candidates with baselines, then
        all with alternatives. They choose the cases of the next pass."""
        records = self._revise_records(self._check_states(log, Purpose.CONFIRMATION), log)
        judged = [
            comparison
            for regime in Regime
            for record in records
            if record.role is Role.CANDIDATE and (comparison := record.compared(regime)) is not None
        ]
        for record in records:
            judged += [c for c in record.comparisons if c.reference is Reference.ALTERNATIVE]
        return judged

    def _revise_records(self, confirmations: Mapping[str, CaseState], log: Log) -> list[Record]:
        isolated = self._check_states(log, Purpose.ISOLATED)
        cases = by_case(self.records)
        revised = []
        for record in self.records:
            case_id = record.case_id
            if record.role in (Role.CANDIDATE, Role.BASELINE):
                planned = self.plan.by_id[case_id]
                clean = self.plan.clean_baselines(planned)
                record = revise(
                    record,
                    cases[case_id],
                    confirmations.get(case_id),
                    isolated.get(case_id),
                    clean,
                    self.plan.margin,
                    self.plan.clean_alternatives(planned),
                )
                if self.plan.sources and not clean:
                    record = _note_own_baselines(record)
            revised.append(record)
        return revised

    def _check_states(self, log: Log, purpose: Purpose) -> dict[str, CaseState]:
        states = states_of(self.plan, log, purpose)
        return {case_id: self._check_state(state) for case_id, state in states.items()}

    def _check_state(self, state: CaseState) -> CaseState:
        records = of_state(self.plan, self.session, state)
        findings = [f for c in (parity, ordering, roofline) for f in c.check(records, self.limits)]
        observations = []
        for record, observation in zip(
            with_findings(records, findings), state.observations, strict=True
        ):
            if observation.status is Status.UNSUPPORTED:  # it was right in the main pass
                reason = f"it declined the case after a right answer: {observation.reason}"
                observation = without_times(observation, Status.CRASHED, reason)
            elif observation.status is not record.status:
                observation = without_times(observation, record.status, record.reason)
            observations.append(observation)
        return replace(state, observations=observations)

    def results(self, log: Log) -> Results:
        confirmations = self._check_states(log, Purpose.CONFIRMATION)
        failing = _find_failing(confirmations)
        notes = by_case(f for f in self.findings if f.effect is Effect.NOTE)
        doubts = [f for f in self.findings if f.check in OF_TIMES]
        doubts = [f for f in doubts if f.effect is Effect.INCONCLUSIVE]
        cases = by_case(self.records)
        records = []
        for record in self._revise_records(confirmations, log):
            again = failing.get(record.key)
            if again is not None and record.role is Role.CANDIDATE and record.status is Status.OK:
                record = _fail_record(record, again)
            case = cases[record.case_id]
            noted = [f.sentence for f in notes.get(record.case_id, ()) if f.concerns(record)]
            floor, time_ms = least(record, self.limits), record.median_ms
            doubted = [f.sentence for f in doubts if f.concerns(record)]
            records.append(
                replace(
                    record,
                    notes="; ".join(filter(None, (record.notes, *noted))),
                    roofline_fraction=floor.ms / time_ms if floor and time_ms else None,
                    time_doubt="; ".join(doubted) if time_ms is not None else "",
                    caution=caution(record, case),
                )
            )
        return Results(records, self.findings)


def _note_own_baselines(record: Record) -> Record:
    """Return the record, with a reason for each winner whose baselines are all from its package."""
    comparisons = tuple(
        replace(c, reason="; ".join(filter(None, (c.reason, ALL_OWN))))
        if c.verdict is Verdict.FASTER
        else c
        for c in record.comparisons
    )
    return replace(record, comparisons=comparisons)


def _find_failing(confirmations: Mapping[str, CaseState]) -> dict[Key, Observation]:
    return {
        (case_id, observation.implementation): observation
        for case_id, second in confirmations.items()
        for observation in second.observations
        if observation.status not in BENIGN
    }


def _fail_record(record: Record, observation: Observation) -> Record:
    judged = tuple(
        c for c in record.comparisons if c.reference is Reference.BASELINE and c.verdict is not None
    )
    reason = f"in a second process: {observation.reason}"
    record = failed(record, observation.model_copy(update={"reason": reason}))
    return replace(record, comparisons=judged)


@dataclass(frozen=True)
class Part:
    """A measured run, or a shard of a merged run."""

    plan: Plan
    log: Log


def assess(plan: Plan, log: Log, known: Sequence[Finding] = ()) -> Assessed:
    """Apply the checks. known: further findings. Raises `UsageError` if the log is empty, or not
    from this plan."""
    refuse_other_log(plan, log)
    ops.refuse_other(plan)
    if not log.sessions:
        raise UsageError("the log is empty: nothing was measured", "resume with --resume RUN.")
    states = states_of(plan, log, Purpose.MAIN).values()
    session = log.sessions[0].model_copy(update={"ceilings": log.ceilings})
    return assess_states(plan, session, list(states), known)


def assess_states(
    plan: Plan, session: Session, states: Sequence[CaseState], known: Sequence[Finding] = ()
) -> Assessed:
    """Apply the checks to the main pass. session: with the ceilings to use."""
    limits = Limits.measured(session.ceilings)
    records = [record for state in states for record in of_state(plan, session, state)]
    findings, records = checks.judge_all(records, limits)
    findings = [*findings, *known]
    records = with_findings(_name_unproven(records), findings)
    return Assessed(plan, session, limits, judge(records, findings), findings)


def _name_unproven(records: Sequence[Record]) -> list[Record]:
    unproven: dict[Group, list[str]] = {}
    for lack in proofs.unproven(records):
        if proofs.regime_of(lack.check) is None:
            unproven.setdefault(lack.group, []).append(lack.check)
    return [
        replace(r, unproven=", ".join(unproven.get(Group.of(r), ())))
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

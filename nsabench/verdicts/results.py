"""From plan and log to checked, judged records: the rows of records.parquet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from nsabench import checks, ops
from nsabench.checks import controls, ordering, parity, roofline
from nsabench.checks.cases import by_case
from nsabench.checks.finding import Effect, Finding
from nsabench.checks.group import Group
from nsabench.checks.limits import Limits
from nsabench.checks.proofs import regime_of
from nsabench.checks.row import Row
from nsabench.errors import UsageError
from nsabench.model.log import Log, Session
from nsabench.model.measurement import Bursts, Observation, Samples
from nsabench.model.plan import Plan
from nsabench.model.record import Record
from nsabench.model.source import Source
from nsabench.model.vocabulary import BENIGN, Catch, Purpose, Regime, Role, Status, Verdict
from nsabench.verdicts import doubts
from nsabench.verdicts.attempts import CaseState, states_of
from nsabench.verdicts.caution import caution
from nsabench.verdicts.pays.against import against_alternatives
from nsabench.verdicts.recording import record
from nsabench.verdicts.rows import of_case, of_states, with_findings, without_times
from nsabench.verdicts.verdict import (
    Aside,
    InRegime,
    Judgement,
    Key,
    judge,
    revised,
)

Timed = tuple[str, str, Regime]  # case id, implementation, regime
ALL_OWN = "all its baselines come from its own package: none was timed without it"


@dataclass(frozen=True)
class Results:
    """What is known after a run: records and samples as Parquet will hold them, and findings.

    samples: those of a case, implementation and regime, with their attempt.
    """

    records: list[Record]
    samples: dict[Timed, tuple[int, Samples | Bursts]]
    findings: list[Finding]


@dataclass(frozen=True)
class Assessed:
    """What the checks made of a log.

    main: the verdicts before any second process. run_id: of the merged run whose records they
    are, if they are those of one.
    """

    plan: Plan
    session: Session
    limits: Limits
    observations: dict[Key, Observation]
    rows: list[Row]
    findings: list[Finding]
    catches: dict[Key, Catch]
    main: InRegime
    run_id: str = ""

    def judgements(self, log: Log) -> InRegime:
        """The verdicts after what other processes saw of the same cases, by which later passes
        are chosen."""
        return self._revised(self._checked(states_of(self.plan, log, Purpose.CONFIRMATION)), log)

    def _revised(self, confirmations: Mapping[str, CaseState], log: Log) -> InRegime:
        isolated = self._checked(states_of(self.plan, log, Purpose.ISOLATED))
        seen = {}
        for regime, first in self.main.items():
            timings = {key: self.observations[key].timings(regime) for key in first}
            asides = {
                key: self._aside(key, isolated[key[0]], judgement)
                for key, judgement in first.items()
                if key[0] in isolated
            }
            judged = revised(first, timings, confirmations, asides, self.plan.margin, regime)
            seen[regime] = {key: self._with_own_alone(key, one) for key, one in judged.items()}
        return seen

    def _aside(self, key: Key, state: CaseState, judgement: Judgement) -> Aside:
        clean = self.plan.clean_baselines(self.plan.by_id[key[0]])
        valid = [
            row.implementation
            for row in self._by_case[key[0]]
            if row.implementation in clean and row.status is Status.OK and row.timed_ms is not None
        ]
        best = judgement.best_baseline
        is_own = not best or self._source(key[0], best) == self._source(*key)
        return Aside(state, "" if is_own else best, valid)

    def _with_own_alone(self, key: Key, judgement: Judgement) -> Judgement:
        """The judgement, which says so where no baseline could be timed apart from a winner."""
        clean = self.plan.clean_baselines(self.plan.by_id[key[0]])
        if judgement.verdict is not Verdict.FASTER or not self.plan.sources or clean:
            return judgement
        return replace(judgement, why="; ".join(filter(None, (judgement.why, ALL_OWN))))

    @cached_property
    def _by_case(self) -> dict[str, list[Row]]:
        return by_case(self.rows)

    def _source(self, case_id: str, name: str) -> Source:
        return self.plan.info(self.plan.by_id[case_id].case.op, name).source

    def _checked(self, states: Mapping[str, CaseState]) -> dict[str, CaseState]:
        """What a later pass measured by case id, held to what the main pass is held to."""
        return {case_id: self._checked_state(state) for case_id, state in states.items()}

    def _checked_state(self, state: CaseState) -> CaseState:
        case = self.plan.by_id[state.case_id].case
        rows = of_case(self.plan, case, state.observations, state.conditions)
        findings = [f for c in (parity, ordering, roofline) for f in c.check(rows, self.limits)]
        observations = [
            observation if row.status is observation.status else without_times(observation, row)
            for row, observation in zip(
                with_findings(rows, findings), state.observations, strict=True
            )
        ]
        return replace(state, observations=observations)

    def results(self, log: Log) -> Results:
        """Records and samples as Parquet will hold them."""
        confirmations = self._checked(states_of(self.plan, log, Purpose.CONFIRMATION))
        judgements = self._revised(confirmations, log)
        notes = by_case(f for f in self.findings if f.effect is Effect.NOTE)
        of_times = doubts.of_findings(self.findings)
        failed = _failed_again(self.rows, confirmations)
        observations = {**self.observations, **failed}
        unproven: dict[Group, list[str]] = {}
        for lack in controls.unproven(self.rows, self.catches):
            if regime_of(lack.check) is None:
                unproven.setdefault(lack.group, []).append(lack.check)
        cases = by_case(self.rows)
        against = {
            r: against_alternatives(self.rows, _timings(self.observations, r), r) for r in Regime
        }
        records = []
        for row in self.rows:
            key = row.case_id, row.implementation
            judged = {regime: found[key] for regime, found in judgements.items() if key in found}
            records.append(
                record(
                    self,
                    _after(row, failed.get(key)),
                    observations[key],
                    judged=judged,
                    noted=notes.get(row.case_id, []),
                    doubt=doubts.about(row, of_times),
                    unproven=unproven.get(Group.of(row), []) if row.role is Role.CANDIDATE else [],
                    caution=caution(row, cases[row.case_id], judged.values()),
                    catch=self.catches.get(key),
                    against={r: found[key] for r, found in against.items() if key in found},
                )
            )
        samples = {
            (*key, regime): (self.observations[key].attempt, self.observations[key].timings(regime))
            for row in self.rows
            for key in [(row.case_id, row.implementation)]
            for regime in (Regime.of_samples(row.mode), Regime.QUEUE)
        }
        return Results(records, samples, self.findings)


@dataclass(frozen=True)
class Part:
    """What a run was measured by: itself, or one of the shards that it was merged of."""

    plan: Plan
    log: Log


def assess(plan: Plan, log: Log, known: Sequence[Finding] = ()) -> Assessed:
    """Apply the checks. known: what speaks against the run beside them. Raises `UsageError` when
    the log is not one of this plan."""
    belongs(plan, log)
    ops.refuse_other(plan)
    if not log.sessions:
        raise UsageError("the log is empty: nothing was measured", "resume with --resume RUN.")
    states = states_of(plan, log, Purpose.MAIN).values()
    session = log.sessions[0].model_copy(update={"ceilings": log.ceilings})
    return assess_states(plan, session, list(states), known)


def assess_states(
    plan: Plan, session: Session, states: Sequence[CaseState], known: Sequence[Finding] = ()
) -> Assessed:
    """Apply the checks to what the main pass measured. session: with the ceilings that count."""
    limits = doubts.limits(session)
    observations = {(s.case_id, o.implementation): o for s in states for o in s.observations}
    rows = of_states(plan, states)
    findings, catches = checks.judge_all(rows, limits)
    findings = [*findings, *known]
    rows = with_findings(rows, findings)
    main = {r: judge(rows, _timings(observations, r), findings, r) for r in Regime}
    return Assessed(
        plan=plan,
        session=session,
        limits=limits,
        observations=observations,
        rows=rows,
        findings=findings,
        catches=catches,
        main=main,
    )


def _timings(
    observations: Mapping[Key, Observation], regime: Regime
) -> dict[Key, Samples | Bursts]:
    return {key: observation.timings(regime) for key, observation in observations.items()}


def belongs(plan: Plan, log: Log) -> None:
    """Raises `UsageError` when the log is not one of this plan, as it was when it was begun."""
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
        if any(one.attempt != attempt.job.attempt for one in attempt.observations):
            wrong = f"holds observations of case {case_id} that are of another attempt"
    if wrong:
        raise UsageError(
            f"the log {wrong}: plan.json and log.jsonl do not belong together",
            "restore the run folder, or start a new run.",
        )


def _failed_again(
    rows: Sequence[Row], confirmations: Mapping[str, CaseState]
) -> dict[Key, Observation]:
    """What a second process found failing of the candidates that the first found ok."""
    ok = {
        (row.case_id, row.implementation)
        for row in rows
        if row.role is Role.CANDIDATE and row.status is Status.OK
    }
    return {
        (case_id, observation.implementation): observation
        for case_id, second in confirmations.items()
        for observation in second.observations
        if observation.status not in BENIGN and (case_id, observation.implementation) in ok
    }


def _after(row: Row, failed: Observation | None) -> Row:
    """The row, which is not ok where a second process found it failing."""
    if failed is None:
        return row
    return replace(row, status=failed.status, reason=f"in a second process: {failed.reason}")

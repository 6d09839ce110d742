"""Checks the kernels of one file on a few shapes (`nsabench check`).

It is not a run: it tries no control and signs nothing, so it decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from nsabench import registry
from nsabench.check.baselines import ATTEMPT, KnownBaselines
from nsabench.check.question import UNTIMED, Question, plan
from nsabench.checks.clocks import disturbances
from nsabench.machine import pressure
from nsabench.model.case import Case
from nsabench.model.job import Job
from nsabench.model.log import Log, Session
from nsabench.model.measurement import Ceilings, Observation
from nsabench.model.plan import Plan, PlannedCase
from nsabench.model.record import Record
from nsabench.model.vocabulary import NO_SPECIALISED, Purpose, Role, Status
from nsabench.running import discovery
from nsabench.running.attempt import attempt
from nsabench.running.policy import next_job
from nsabench.running.supervisor.executor import WorkerExecutor
from nsabench.verdicts.attempts import CaseState, state_of
from nsabench.verdicts.caution import GREAT, all_general
from nsabench.verdicts.results import assess_states
from nsabench.worker.protocol import Step

__all__ = ["Answer", "Question", "answer"]


@dataclass(frozen=True)
class Answer:
    """How one implementation did on one case. baseline: the fastest that is right.

    speedup: the ratio of device medians. caution: a warning, or why it is missing.
    """

    case: Case
    record: Record
    baseline: Record | None
    is_cached: bool
    log: str
    speedup: float | None
    caution: str


def answer(
    question: Question, on_found: Callable[[Step], None] = lambda step: None
) -> list[Answer]:
    """Measure the file, and installed code in another process, which never imports the file.

    on_found: called with whether an implementation is right, before any is timed. Raises
    `UsageError` for a bad shape or file.
    """
    sources = registry.sources(question.file, question.ops_file)
    clean = discovery.without_file(question.file, sources)

    def on_step(step: Step) -> None:
        if step.phase in list(Status):
            on_found(step)

    def workers(file: Path | None, sources: Mapping[str, str]) -> WorkerExecutor:
        return WorkerExecutor(
            question.device,
            file,
            sources=sources,
            ops_file=question.ops_file,
            sandboxed=question.sandboxed,
            on_step=on_step if file else lambda step: None,
        )

    with closing(workers(None, clean)) as apart, closing(workers(question.file, sources)) as own:
        infos = discovery.join_file(question.file, sources, apart.discover(), own.discover())
        known = KnownBaselines(apart.describe(), clean, fresh=question.fresh)
        check = Check(plan(question, infos, sources), own, apart, known)
        return [answer for case in check.plan.cases for answer in check.answers(case)]


@dataclass(frozen=True)
class Check:
    """own: the worker that imports the file; apart: the worker for installed code."""

    plan: Plan
    own: WorkerExecutor
    apart: WorkerExecutor
    known: KnownBaselines
    printed: dict[str, str] = field(default_factory=dict)

    def answers(self, planned: PlannedCase) -> Iterator[Answer]:
        known = self.known
        infos = [self.plan.info(planned.case.op, name) for name in planned.implementations]
        cached = {i.name: o for i in infos if (o := known.observation(planned.case, i)) is not None}
        installed = [i.name for i in infos if known.keeps(i) and i.name not in cached]
        beside = self.measure_installed(planned, installed)
        state = self.measure(self.own, planned, [i.name for i in infos if not known.keeps(i)])
        # Samples of two processes must not form a ratio.
        others = [o.model_copy(update={"attempt": ATTEMPT}) for o in beside.observations]
        observations = [*state.observations, *cached.values(), *others]
        alone = self.plan.model_copy(update={"cases": [planned]})
        assessed = assess_states(alone, self.session, [replace(state, observations=observations)])
        records = {r.implementation: r for r in assessed.results(Log()).records}
        timed = [
            record
            for i in infos
            if i.role is Role.BASELINE
            and planned.case.timing != UNTIMED
            and (record := records[i.name]).status is Status.OK
            and record.median_ms
        ]
        best = min(timed, key=lambda record: record.median_ms or 0, default=None)
        is_general = all_general([(record.kind, record.median_ms or 0.0) for record in timed])
        is_cached = best is not None and best.implementation in cached
        for record in (records[i.name] for i in infos):
            if record.role is Role.CANDIDATE:
                log = self.printed.get(record.implementation, "")
                caution = record.time_doubt or (best.time_doubt if best else "")
                speedup = None
                if best and best.median_ms and record.median_ms and not caution:
                    speedup = best.median_ms / record.median_ms
                    caution = NO_SPECIALISED if is_general and speedup > GREAT else ""
                yield Answer(planned.case, record, best, is_cached, log, speedup, caution)

    def measure_installed(self, planned: PlannedCase, installed: Sequence[str]) -> CaseState:
        """Measure installed code while the file's worker is stopped, and cache undisturbed
        times."""
        if installed:
            self.own.retire()
        was_busy = pressure.watch(self.apart.processes)
        beside = self.measure(self.apart, planned, installed)
        if not was_busy() and not any(disturbances(list(beside.conditions.values()))):
            for observation in beside.observations:
                info = self.plan.info(planned.case.op, observation.implementation)
                self.known.keep(planned.case, info, observation)
        return beside

    def measure(self, by: WorkerExecutor, planned: PlannedCase, names: Sequence[str]) -> CaseState:
        """Measure implementations of a case as the main pass of a run does."""
        log, chosen = Log([self.session]), planned.model_copy(update={"implementations": names})
        while (state := state_of(self.plan, log, Purpose.MAIN, chosen)).next is not None:
            job = next_job(planned.case, state, by.sources or ())
            attempt(job, by, log.extend, self.keep_printed)
        return state

    def keep_printed(self, job: Job, observations: Sequence[Observation], log: str) -> None:
        traces = {observation.implementation: observation.traceback for observation in observations}
        for name in job.implementations:
            self.printed[name] = "\n".join(filter(None, (log.rstrip(), traces.get(name, ""))))

    @property
    def session(self) -> Session:
        return Session(
            run_id=self.plan.run_id,
            plan_sha256=self.plan.sha256,
            environment_sha256="",
            started=self.plan.created,
            described=self.known.described,
            ceilings=Ceilings(),
        )

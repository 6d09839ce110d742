"""Run jobs until `next_jobs` asks for no more, and log how each ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from nsabench import labels, registry
from nsabench.channel import Step
from nsabench.files import whole
from nsabench.machine import doctor
from nsabench.machine.environment.collect import collect
from nsabench.machine.environment.identity import machine_of
from nsabench.model.description import Described
from nsabench.model.job import Death, Job
from nsabench.model.log import Begun, Ended, Log, Observed, WriterSession
from nsabench.model.measurement import Ceilings, Observation
from nsabench.model.plan import Plan, PlannedCase
from nsabench.model.record import Comparison
from nsabench.model.vocabulary import Purpose
from nsabench.running.clients import CheckerClient, WorkerClient
from nsabench.running.compilation import CompileAhead
from nsabench.running.executor import Executor
from nsabench.running.folder import RunFolder
from nsabench.running.log import LogFile
from nsabench.running.policy import make_comparisons, next_jobs, plan_canary
from nsabench.verdicts.attempts import CaseState, state_of

ANNOUNCEMENTS = {
    Purpose.CONFIRMATION: "confirming {case}",
    Purpose.ISOLATED: "baselines of {case} without the candidates",
    Purpose.CANARY: "the case that all shards measure: {case}",
}


class View(Protocol):
    def case_started(self, planned: PlannedCase, number: int, total: int) -> None: ...

    def case_finished(self, planned: PlannedCase, state: CaseState) -> None: ...

    def note(self, text: str) -> None: ...

    def run_started(self, plan: Plan, described: Described, ceilings: Ceilings) -> None: ...

    def step(self, step: Step) -> None: ...


@dataclass
class Loop:
    plan: Plan
    file: LogFile
    folder: RunFolder
    view: View
    checker: CheckerClient
    fit: bool  # whether to raise `EnvironmentRefused` on an unfit machine

    def __post_init__(self) -> None:
        self._ahead = CompileAhead(self.plan, self.folder.path)
        self._executor: Executor | None = None
        self._described: Described | None = None  # describes this machine
        self._is_open = False  # whether the session of this process has begun
        self._shows_steps = False
        self._compared: dict[int, list[Comparison]] = {}
        self._numbers = {planned.id: number for number, planned in enumerate(self.plan.cases, 1)}

    def run(self) -> float:
        """Measure what is left. Return the seconds in kernels and compilers."""
        log = self.file.log
        before_s = log.measuring_s
        while jobs := self._next_jobs():
            if not self._is_open:
                self._open_session(jobs)
            for job in jobs:
                executor = self._choose_executor(job, jobs)
                self._announce(job)
                run_job(job, executor, self.file.append, self.folder.keep_printed)
                if not self._report(job):
                    break  # a death or a disturbance changes what comes next
        return log.measuring_s - before_s + self._ahead.wall_s

    def describe(self) -> Described | None:
        """Return a description of this machine, or None if nothing is left to measure."""
        if self._described is None and (jobs := self._next_jobs()):
            self._described = self._start_executor(jobs[0]).worker.describe()
        return self._described

    def _next_jobs(self) -> list[Job]:
        return next_jobs(self.plan, self.file.log, self._make_comparisons)

    def _make_comparisons(self, plan: Plan, log: Log) -> list[Comparison]:
        count = len(log.attempts)
        if count not in self._compared:
            self._compared[count] = make_comparisons(plan, log)
        return self._compared[count]

    def _open_session(self, jobs: Sequence[Job]) -> None:
        """Describe the machine and measure its ceilings. Raises `EnvironmentRefused`."""
        described = self.describe()
        assert described is not None and self._executor is not None
        if self.fit or not self.file.log.sessions:
            self._describe_environment(described)
        session = WriterSession(
            run_id=self.plan.run_id,
            plan_sha256=self.plan.sha256,
            environment_sha256=self.folder.hash_environment(),
            started=datetime.now(UTC),
            machine=machine_of(self.plan.run_id, described),
            distributions=registry.distributions(),
            described=described,
            ceilings=self._executor.worker.measure_ceilings(),
        )
        self.file.append(session)
        self._is_open = True
        self.view.run_started(self.plan, described, session.ceilings)
        self._lend_caches(self._executor, jobs)

    def _describe_environment(self, described: Described) -> None:
        # Called before this run itself changes clocks, temperature and processes.
        environment = collect(described, self.plan)
        if not self.file.log.sessions:
            content = f"{environment.model_dump_json(indent=1)}\n".encode()
            whole(self.folder.environment, content)
        if self.fit:
            for problem in doctor.refuse_unfit(environment, results=self.folder.path):
                self.view.note(f"{problem.severity}: {problem.what} {problem.remedy}")

    def _choose_executor(self, job: Job, jobs: Sequence[Job]) -> Executor:
        """Return an executor that has served only this pass with these sources."""
        executor = self._executor
        if executor is None or self._serves != (job.purpose, job.sources):
            executor = self._start_executor(job)
            self._lend_caches(executor, jobs)
        return executor

    def _start_executor(self, job: Job) -> Executor:
        if self._executor is not None:
            self._executor.worker.close()
        self._serves = job.purpose, job.sources
        run, mailbox = self.folder.path, self.checker.mailbox
        worker = WorkerClient.from_plan(self.plan, run, job.sources, mailbox, self._show_step)
        self._executor = Executor(self.plan, worker, self.checker)
        return self._executor

    def _lend_caches(self, executor: Executor, jobs: Sequence[Job]) -> None:
        """Compile what is left, once in a run, and let the worker of an executor use the result."""
        described = self.file.log.sessions[-1].described
        left = [*jobs, *plan_canary(self.plan, self.file.log)]
        self._ahead.compile(left, described.device.memory_bytes, self.view.note)
        self._ahead.lend(executor, described.sandbox or "")

    def _announce(self, job: Job) -> None:
        planned = self.plan.case_or_canary(job.case.id)
        self._shows_steps = job.purpose is Purpose.MAIN
        if self._shows_steps:
            self.view.case_started(planned, self._numbers[planned.id], len(self._numbers))
        else:
            case = labels.case_with_op(planned.case)
            self.view.note(ANNOUNCEMENTS[job.purpose].format(case=case))

    def _show_step(self, step: Step) -> None:
        if self._shows_steps:
            self.view.step(step)

    def _report(self, job: Job) -> bool:
        """Return whether the job's pass over the case is complete. Show a complete main pass."""
        planned = self.plan.case_or_canary(job.case.id)
        state = state_of(self.plan, self.file.log, job.purpose, planned)
        if state.next is None and job.purpose is Purpose.MAIN:
            self.view.case_finished(planned, state)
        return state.next is None

    def close(self) -> None:
        try:
            if self._executor is not None:
                self._executor.worker.close()
        finally:
            self._ahead.close()


def run_job(
    job: Job,
    executor: Executor,
    append: Callable[..., None],
    keep_printed: Callable[[Job, Sequence[Observation], str], None],
) -> None:
    """Run a job and log it. An interrupt, or an error that the user must mend, is not a death."""
    if job.pause_s:
        time.sleep(job.pause_s)
    append(Begun(job=job))
    start = time.monotonic()
    try:
        answer = executor.run(job)
        observations = [] if isinstance(answer, Death) else answer.observations
        for observation in observations:
            observation.attempt = job.attempt
        wall_s = time.monotonic() - start
        keep_printed(job, observations, executor.worker.log.text())
    except BaseException:
        append(Ended(interrupted=True, wall_s=time.monotonic() - start))
        raise
    if isinstance(answer, Death):
        append(Ended(death=answer, wall_s=wall_s))
        return
    ended = Ended(conditions=answer.conditions, wall_s=wall_s, measuring_s=answer.measuring_s)
    append(*(Observed(observation=observation) for observation in observations), ended)

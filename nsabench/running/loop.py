"""Run the jobs of a plan until the policy has no more, and log how each ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Protocol

from nsabench import labels
from nsabench.channel import Step
from nsabench.model.description import Described
from nsabench.model.job import Death, Job
from nsabench.model.log import Begun, Ended, Log, Observed
from nsabench.model.measurement import Ceilings, Observation
from nsabench.model.plan import Plan, PlannedCase
from nsabench.model.record import Comparison
from nsabench.model.vocabulary import Purpose
from nsabench.running.clients import CheckerProcess, Worker
from nsabench.running.compilation import CompileAhead
from nsabench.running.executor import Executor
from nsabench.running.folder import RunFolder
from nsabench.running.log import LogFile
from nsabench.running.policy import judge, next_jobs, plan_canary
from nsabench.running.session import open_session
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
    """Measures the jobs of a plan, and appends to its log."""

    plan: Plan
    file: LogFile
    folder: RunFolder
    view: View
    checker: CheckerProcess
    fit: bool  # raise `EnvironmentRefused` on an unfit machine

    def __post_init__(self) -> None:
        self._ahead = CompileAhead(self.plan, self.folder.path)
        self._executor: Executor | None = None
        self._is_open = False  # whether the session of this process has begun
        self._shows_steps = False
        self._judged: dict[int, list[Comparison]] = {}
        self._numbers = {planned.id: number for number, planned in enumerate(self.plan.cases, 1)}

    def run(self) -> float:
        """Return the seconds in kernels and compilers."""
        log = self.file.log
        before_s = log.measuring_s
        with closing(self):
            while jobs := next_jobs(self.plan, log, self._judge):
                for job in jobs:
                    executor = self._choose_executor(job, jobs)
                    self._announce(job)
                    run_job(job, executor, self.file.append, self.folder.keep_printed)
                    if not self._report(job):
                        break  # a death or a disturbance changes what comes next
        return log.measuring_s - before_s + self._ahead.wall_s

    def _judge(self, plan: Plan, log: Log) -> list[Comparison]:
        count = len(log.attempts)
        if count not in self._judged:
            self._judged[count] = judge(plan, log)
        return self._judged[count]

    def _announce(self, job: Job) -> None:
        planned = self.plan.case_or_canary(job.case.id)
        self._shows_steps = job.purpose is Purpose.MAIN
        if self._shows_steps:
            self.view.case_started(planned, self._numbers[planned.id], len(self._numbers))
        else:
            case = labels.of_case(planned.case)
            self.view.note(ANNOUNCEMENTS[job.purpose].format(case=case))

    def _report(self, job: Job) -> bool:
        """Return whether nothing is left to measure of a case for this purpose."""
        planned = self.plan.case_or_canary(job.case.id)
        state = state_of(self.plan, self.file.log, job.purpose, planned)
        if state.next is None and job.purpose is Purpose.MAIN:
            self.view.case_finished(planned, state)
        return state.next is None

    def _show_step(self, step: Step) -> None:
        if self._shows_steps:
            self.view.step(step)

    def _choose_executor(self, job: Job, jobs: Sequence[Job]) -> Executor:
        if self._executor is not None:
            if self._executor.worker.imports(job.sources):
                return self._executor
            self._executor.worker.close()
        worker = Worker.of_plan(
            self.plan, self.folder.path, job.sources, self.checker.mailbox, self._show_step
        )
        executor = self._executor = Executor(self.plan, worker, self.checker)
        if not self._is_open:
            session = open_session(
                self.plan, self.folder, self.file.log, executor.worker, self.view.note, fit=self.fit
            )
            self.file.append(session)
            self._is_open = True
            self.view.run_started(self.plan, session.described, session.ceilings)
        described = self.file.log.sessions[-1].described
        left = [*jobs, *plan_canary(self.plan, self.file.log)]
        self._ahead.compile(left, described.device.memory_bytes, self.view.note)
        self._ahead.lend(executor, described.sandbox or "")
        return executor

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
    """Run a job and log it. An interrupt, or an error that the user must mend, logs no death."""
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

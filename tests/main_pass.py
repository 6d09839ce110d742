"""The main pass of a plan, with workers of a test's own choice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

from nsabench.model.description import Described
from nsabench.model.plan import Plan
from nsabench.model.vocabulary import Purpose
from nsabench.running.attempt import attempt
from nsabench.running.folder import RunFolder
from nsabench.running.log import LogFile
from nsabench.running.policy import next_jobs
from nsabench.running.supervisor.executor import WorkerExecutor
from nsabench.verdicts.attempts import CaseState, states_of
from tests.runs import SIGNER, session_of

Workers = Callable[[], AbstractContextManager[WorkerExecutor]]


def measure(
    plan: Plan, folder: Path, workers: WorkerExecutor | Workers, sandbox: str = ""
) -> list[CaseState]:
    """Measure all cases. workers: one executor for all of them, or a maker of one for each job."""
    (folder / "logs").mkdir(exist_ok=True, parents=True)
    described = Described(software={"torch": "2"}, device={"type": plan.device}, sandbox=sandbox)
    with closing(LogFile(folder / "log.jsonl")) as file:
        file.sign_as(SIGNER)
        file.append(session_of(plan, described))
        while jobs := next_jobs(plan, file.log, lambda plan, log: {}):
            with _executor(workers) as executor:
                attempt(jobs[0], executor, file.append, RunFolder(folder).keep_printed)
    return list(states_of(plan, file.log, Purpose.MAIN).values())


@contextmanager
def _executor(workers: WorkerExecutor | Workers) -> Iterator[WorkerExecutor]:
    if callable(workers):
        with workers() as executor:
            yield executor
    else:
        yield workers

"""Measure the main pass of a plan with executors that a test makes."""

from contextlib import closing, contextmanager
from pathlib import Path

from nsabench.model.description import Described
from nsabench.model.vocabulary import Purpose
from nsabench.running.clients import CheckerClient, WorkerClient
from nsabench.running.executor import Executor
from nsabench.running.folder import RunFolder
from nsabench.running.log import LogFile
from nsabench.running.loop import run_job
from nsabench.running.policy import next_jobs
from nsabench.verdicts.attempts import states_of
from tests.runs import SIGNER, session_of


def measure(plan, folder, workers, sandbox=""):
    """Measure all cases. workers: one executor for all jobs, or a function that opens one for each
    job."""
    (folder / "logs").mkdir(exist_ok=True, parents=True)
    described = Described(software={"torch": "2"}, device={"type": plan.device}, sandbox=sandbox)
    with closing(LogFile(folder / "log.jsonl")) as file:
        file.sign_as(SIGNER)
        file.append(session_of(plan, described))
        while jobs := next_jobs(plan, file.log, lambda plan, log: {}):
            with _executor(workers) as executor:
                run_job(jobs[0], executor, file.append, RunFolder(folder).keep_printed)
    return list(states_of(plan, file.log, Purpose.MAIN).values())


@contextmanager
def executor_of(plan, folder, sources=None, **given):
    """Yield an executor for a plan. given: arguments of `WorkerClient.from_plan`."""
    ops_file = Path(plan.ops) if plan.ops else None
    with (
        closing(CheckerClient(plan.device, ops_file)) as checker,
        closing(WorkerClient.from_plan(plan, folder, sources, checker.mailbox, **given)) as worker,
    ):
        yield Executor(plan, worker, checker)


@contextmanager
def _executor(workers):
    if callable(workers):
        with workers() as executor:
            yield executor
    else:
        yield workers

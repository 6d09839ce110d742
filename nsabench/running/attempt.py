"""One attempt at a job: run it, and log how it ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from nsabench.model.job import Death, Job
from nsabench.model.log import Begun, Ended, Observed
from nsabench.model.measurement import Observation
from nsabench.running.supervisor.executor import WorkerExecutor


def attempt(
    job: Job,
    executor: WorkerExecutor,
    append: Callable[..., None],
    keep_printed: Callable[
        [Job, Sequence[Observation], str], None
    ] = lambda job, observations, log: None,
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
        keep_printed(job, observations, executor.log())
    except BaseException:
        append(Ended(interrupted=True, wall_s=time.monotonic() - start))
        raise
    if isinstance(answer, Death):
        append(Ended(death=answer, wall_s=wall_s))
        return
    ended = Ended(
        conditions=answer.conditions,
        wall_s=wall_s,
        measuring_s=answer.measuring_s,
    )
    append(*(Observed(observation=observation) for observation in observations), ended)

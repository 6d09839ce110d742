"""Is this the machine, with the software, that a run was begun on?"""

from __future__ import annotations

from collections.abc import Sequence

from nsabench import registry
from nsabench.errors import EnvironmentRefused, UsageError
from nsabench.model.description import Described
from nsabench.model.log import Session
from nsabench.running.supervisor.death import WorkerLost
from nsabench.running.supervisor.executor import WorkerExecutor


def described_as_before(executor: WorkerExecutor, earlier: Sequence[Session]) -> Described:
    """Describe the machine of `executor`.

    Raises `UsageError` when the run was begun on another one or with other versions, and
    `EnvironmentRefused` when it cannot be described.
    """
    try:
        described = executor.describe()
    except WorkerLost as lost:
        raise EnvironmentRefused(
            f"the device could not be described: {lost.reason}", "run `nsabench doctor`."
        ) from lost
    if not earlier:
        return described
    before, distributions = earlier[0].described, registry.distributions()
    versions_before = earlier[0].distributions or distributions
    for what, then, now in (
        *(
            (name, versions_before.get(name), distributions.get(name))
            for name in {**versions_before, **distributions}
        ),
        ("device", before.device.name, described.device.name),
        ("CPU", before.device.capability, described.device.capability),
        ("torch", before.software.torch, described.software.torch),
        ("triton", before.software.triton, described.software.triton),
        (
            "the driver's CUDA",
            before.software.cuda_driver,
            described.software.cuda_driver,
        ),
    ):
        if then != now:
            raise UsageError(
                f"this run was begun on {what} {then} and cannot go on with {now}",
                "start a new run here.",
            )
    return described

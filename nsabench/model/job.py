"""Define a job: some implementations of a case, measured together in one worker."""

from __future__ import annotations

from hashlib import sha256
from typing import Annotated

from pydantic import Field

from nsabench.model.case import Case
from nsabench.model.measurement import Message, Time
from nsabench.model.vocabulary import Purpose, Status

Attempt = Annotated[int, Field(ge=1, lt=1 << 31)]


class EarlyExit(Message, frozen=True):
    """Baselines that are not timed if far slower than one of at least `stay` right baselines."""

    baselines: tuple[str, ...] = ()
    stay: int = 1
    least_ms: Time = 0.0  # a baseline with faster calls always stays


ALL_STAY = EarlyExit()


class Job(Message, frozen=True):
    purpose: Purpose
    case: Case  # with the timing and the timeout of this job
    sources: tuple[str, ...]  # names of packages and files, sorted
    attempt: Attempt  # counts the jobs with this purpose and case, from 1
    implementations: tuple[str, ...]
    pause_s: float = Field(0.0, ge=0)  # lets the device cool down before the job
    early_exit: EarlyExit = ALL_STAY

    @property
    def key(self) -> tuple[Purpose, str, tuple[str, ...], int]:
        return self.purpose, self.case.id, self.sources, self.attempt


def input_seeds(entropy: str, purpose: Purpose, case: Case) -> list[int]:
    """Return a seed for each set of inputs of a case. All attempts with one purpose share them."""
    # `entropy` is a secret of the plan, so no worker can know the seeds of later jobs.
    count = max(2, case.timing.rotate)
    prefix = f"{entropy}/{case.seed}/{case.id}/{purpose}"
    digests = (sha256(f"{prefix}/{number}".encode()) for number in range(count))
    return [int.from_bytes(digest.digest()[:7]) for digest in digests]


class Death(Message):
    """How a job ended without an answer."""

    status: Status
    reason: str
    suspect: str = ""  # the implementation that the worker named last
    phase: str = ""  # the last step of the worker, such as `parity`

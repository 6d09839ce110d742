"""The supervisor's end of the checker process."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field, TypeAdapter

from nsabench.checker.messages import Checked, Conclude, Concluded, Judged, Prepare, Prepared
from nsabench.delivery import Delivery
from nsabench.errors import NsabenchError
from nsabench.model.case import Case
from nsabench.model.measurement import Message
from nsabench.model.plan import Device
from nsabench.model.vocabulary import Status
from nsabench.running.supervisor.classify import classify
from nsabench.running.supervisor.loss import WorkerLost
from nsabench.running.supervisor.process import WorkerProcess
from nsabench.running.supervisor.program import Program, worker_environment
from nsabench.worker.protocol import Refused, Step

DIAGNOSIS_LIMIT_S = 60.0  # of one implementation; its own search ends after two seconds
REPLY: TypeAdapter[Any] = TypeAdapter(
    Annotated[Step | Prepared | Checked | Concluded | Refused, Field(discriminator="kind")]
)

R = TypeVar("R", bound=Message)


class CheckerLost(Exception):
    """The checker ended, or did not answer in time."""

    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


class CheckerProcess:
    """Started when it is first asked. mailbox: of the memory that it reads outputs in."""

    def __init__(self, device: Device, ops_file: Path | None) -> None:
        self.mailbox = os.memfd_create("nsabench-outputs")
        self._close_mailbox = weakref.finalize(self, os.close, self.mailbox)
        options = ["--device", device]
        if ops_file is not None:
            options += ["--ops", str(ops_file)]
        environment = worker_environment(device)
        self._program = Program(
            "nsabench.running.checking", options, environment, REPLY, mailbox=self.mailbox
        )
        self._process: WorkerProcess | None = None
        self._case: Case | None = None

    def prepare(self, case: Case, computes: Sequence[str], seeds: Sequence[int]) -> Prepared:
        """Have the oracles of a case computed. Raises `CheckerLost`, as all that follows."""
        self._case = case
        request = Prepare(case=case, computes=list(computes), seeds=list(seeds))
        return self._ask(request, Prepared, (1 + len(computes)) * case.timeout_s)

    def check(self, delivery: Delivery) -> Checked:
        """Have the results in the mailbox checked."""
        assert self._case is not None
        return self._ask(delivery, Checked, self._case.timeout_s)

    def conclude(self, implementations: int) -> dict[str, Judged]:
        """What was found of each of so many implementations."""
        return self._ask(Conclude(), Concluded, (1 + implementations) * DIAGNOSIS_LIMIT_S).judged

    def _ask(self, request: Message, expected: type[R], limit_s: float) -> R:
        try:
            if self._process is None:
                self._process = WorkerProcess(self._program)
            for reply in self._process.ask(request, limit_s):
                if isinstance(reply, expected):
                    return reply
        except WorkerLost as lost:
            status, reason = classify(lost)
            self._stop()
            raise CheckerLost(status, f"the checker was lost: {reason}") from lost
        except NsabenchError as error:
            self._stop()
            raise CheckerLost(Status.CRASHED, f"the checker was lost: {error}") from error
        self._stop()
        raise CheckerLost(Status.CRASHED, "the checker was lost: it answered something else")

    def close(self) -> None:
        self._stop()
        self._close_mailbox()

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.stop()

"""Ask the checker, which imports no kernel: for oracles, and whether outputs are right."""

from __future__ import annotations

import os
import weakref
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field, TypeAdapter

from nsabench.channel import Refused, Step
from nsabench.checker.messages import Checked, Conclude, Concluded, Judged, Prepare, Prepared
from nsabench.delivery import Delivery
from nsabench.model.case import Case
from nsabench.model.measurement import Message
from nsabench.model.plan import Device
from nsabench.running.death import CheckerLost, WorkerLost
from nsabench.running.launch import Program, make_environment
from nsabench.running.process import WarmProcess
from nsabench.verdicts.blame import BEFORE_ANY

DIAGNOSIS_LIMIT_S = 60.0  # for each implementation; its own search ends after two seconds
REPLY: TypeAdapter[Any] = TypeAdapter(
    Annotated[Step | Prepared | Checked | Concluded | Refused, Field(discriminator="kind")]
)

R = TypeVar("R", bound=Message)


class CheckerProcess:
    """Starts the checker for the first request. Every request may raise `CheckerLost`."""

    def __init__(self, device: Device, ops_file: Path | None, ops_sha256: str = "") -> None:
        self.mailbox = os.memfd_create("nsabench-outputs")  # outputs are read from it
        self._close_mailbox = weakref.finalize(self, os.close, self.mailbox)
        options = ["--device", device]
        if ops_file is not None:
            options += ["--ops", str(ops_file)]
            if ops_sha256:
                options += ["--ops-sha256", ops_sha256]
        environment = make_environment(device)
        program = Program("nsabench.checker", options, environment, REPLY, self.mailbox)
        self._process = WarmProcess(lambda: program)
        self._limit_s = 0.0

    def prepare(self, case: Case, computes: list[str], seeds: list[int], probes: bool) -> Prepared:
        self._limit_s = case.timeout_s
        request = Prepare(case=case, computes=computes, seeds=seeds, probes=probes)
        return self._ask(request, Prepared, (1 + len(computes)) * case.timeout_s, BEFORE_ANY)

    def check(self, delivery: Delivery) -> Checked:
        return self._ask(delivery, Checked, self._limit_s, "delivery", delivery.implementation)

    def conclude(self, diagnosed: list[str]) -> dict[str, Judged]:
        limit_s = (1 + len(diagnosed)) * DIAGNOSIS_LIMIT_S
        return self._ask(Conclude(diagnosed=diagnosed), Concluded, limit_s, "diagnosis").judged

    def _ask(
        self, request: Message, expected: type[R], limit_s: float, phase: str, suspect: str = ""
    ) -> R:
        try:
            return self._process.ask(request, expected, limit_s)
        except WorkerLost as lost:
            reason = f"the checker was lost: {lost.reason}"
            update = {"reason": reason, "phase": phase, "suspect": suspect}
            raise CheckerLost(lost.death.model_copy(update=update)) from lost

    def close(self) -> None:
        self._process.retire()
        self._close_mailbox()

"""The worker process: reads requests on stdin, answers on the descriptor stdout was.

Everything an implementation prints, on either stream, goes to stderr, which the supervisor keeps.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import sys
from pathlib import Path
from typing import BinaryIO

from nsabench.errors import NsabenchError
from nsabench.messages import (
    REQUEST,
    Calibrate,
    Calibrated,
    Describe,
    Discover,
    Discovered,
    Measure,
    Message,
    Poisoned,
    Refused,
    Step,
)

PR_SET_PDEATHSIG = 1


def main() -> None:
    parser = argparse.ArgumentParser(prog="nsabench.worker")
    parser.add_argument("--device", choices=["cuda", "cpu"], required=True)
    parser.add_argument("--kernels", type=Path)
    parser.add_argument("--parent", type=int, required=True)
    options = parser.parse_args()
    replies = _claim_stdout()
    _die_with(options.parent)
    try:
        Worker(options.device, options.kernels, replies).serve()
    except NsabenchError as error:
        _send(
            replies,
            Refused(sentence=str(error), remedy=error.remedy, exit_code=error.exit_code),
        )


def _claim_stdout() -> BinaryIO:
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return replies


def _die_with(parent: int) -> None:
    """A killed supervisor must leave no worker behind, not even one that hangs in a kernel."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        raise SystemExit("the supervisor is gone")


def _send(replies: BinaryIO, message: Message) -> None:
    replies.write(message.model_dump_json().encode() + b"\n")
    replies.flush()


class Worker:
    """Serves one supervisor on one device. torch and foreign code are imported on first need."""

    def __init__(self, device: str, kernels: Path | None, replies: BinaryIO) -> None:
        self.device = device
        self.kernels = kernels
        self.replies = replies

    def send(self, message: Message) -> None:
        _send(self.replies, message)

    def serve(self) -> None:
        self.send(Step(phase="start"))
        for line in sys.stdin.buffer:
            match REQUEST.validate_json(line):
                case Discover():
                    self.discover()
                case Describe():
                    from nsabench.environment import torch_probe

                    self.send(torch_probe.describe(self.device))
                case Calibrate():
                    self.calibrate()
                case Measure() as request:
                    self.measure(request)

    def discover(self) -> None:
        from nsabench import registry
        from nsabench.plan import ImplementationInfo

        self.send(
            Discovered(
                implementations=[
                    ImplementationInfo.model_validate(item, from_attributes=True)
                    for item in registry.load(self.kernels)
                ]
            )
        )

    def calibrate(self) -> None:
        from nsabench.timing import ceilings
        from nsabench.worker.session import Session

        session = Session.open(self.device, self.kernels)
        self.send(Calibrated(ceilings=ceilings.measure(self.device, session.timer)))

    def measure(self, request: Measure) -> None:
        from nsabench.worker.measure import ArmLost
        from nsabench.worker.session import Session

        session = Session.open(self.device, self.kernels)
        try:
            self.send(session.measure(request, self.send))
        except ArmLost as lost:
            self.send(Poisoned(implementation=lost.implementation, reason=str(lost)))
            raise SystemExit(1) from lost


if __name__ == "__main__":
    main()

"""The worker process: reads requests on stdin, answers on the descriptor stdout was.

Everything an implementation prints, on either stream, goes to stderr, which the supervisor keeps.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nsabench.checker.messages import Checked
from nsabench.delivery import Delivery, Mailbox
from nsabench.errors import NsabenchError
from nsabench.model.measurement import Message
from nsabench.worker import sandbox
from nsabench.worker.channel import Channel, die_with
from nsabench.worker.protocol import (
    REQUEST,
    Calibrate,
    Calibrated,
    Compile,
    Describe,
    Discover,
    Discovered,
    LostDevice,
    Measure,
    Refused,
    Sandbox,
    Step,
)

if TYPE_CHECKING:
    from torch import Tensor

    from nsabench.worker.inputs import InputSets
    from nsabench.worker.session import Session


def main() -> None:
    parser = argparse.ArgumentParser(prog="nsabench.worker")
    parser.add_argument("--device", choices=["cuda", "cpu"], required=True)
    parser.add_argument("--kernels", type=Path)
    parser.add_argument("--ops", type=Path)
    parser.add_argument("--sources", type=json.loads)
    parser.add_argument("--sandbox", type=Sandbox.model_validate_json)
    parser.add_argument("--mailbox", type=int)
    parser.add_argument("--parent", type=int, required=True)
    options = parser.parse_args()
    channel = Channel.claim_stdout()
    die_with(options.parent)
    if options.sandbox is not None:
        sandbox.enter(options.sandbox)
    try:
        mailbox = None if options.mailbox is None else Mailbox(options.mailbox, options.device)
        Worker(
            options.device, options.kernels, options.ops, options.sources, channel, mailbox
        ).serve()
    except NsabenchError as error:
        channel.send(Refused.of(error))


class Worker:
    """Serves one supervisor on one device. torch and foreign code are imported on first need."""

    def __init__(
        self,
        device: str,
        kernels: Path | None,
        ops_file: Path | None,
        sources: Mapping[str, str] | None,
        channel: Channel,
        mailbox: Mailbox | None = None,
    ) -> None:
        self.device = device
        self.kernels = kernels
        self.ops_file = ops_file
        self.sources = sources
        self.channel = channel
        self.mailbox = mailbox
        self.session: Session | None = None

    def send(self, message: Message) -> None:
        self.channel.send(message)

    def step(self, step: Step) -> None:
        """Say what is done next, and do it when the supervisor has heard."""
        self.send(step.model_copy(update={"awaits": True}))
        sys.stdin.buffer.readline()

    def serve(self) -> None:
        self.send(Step(phase="start"))
        for line in sys.stdin.buffer:
            match REQUEST.validate_json(line):
                case Discover():
                    self.discover()
                case Describe():
                    from nsabench.machine.environment import torch_probe

                    described = torch_probe.describe(self.device)
                    self.send(described.model_copy(update={"sandbox": sandbox.held()}))
                case Calibrate():
                    self.calibrate()
                case Compile() as request:
                    self.compile(request)
                case Measure() as request:
                    self.measure(request)

    def discover(self) -> None:
        from nsabench import registry
        from nsabench.model.plan import ImplementationInfo

        self.send(
            Discovered(
                implementations=[
                    ImplementationInfo.model_validate(item, from_attributes=True)
                    for item in registry.load(self.kernels, self.sources, ops_file=self.ops_file)
                ]
            )
        )

    def calibrate(self) -> None:
        from nsabench.worker.session import tools
        from nsabench.worker.timing import ceilings

        # Foreign code has not been imported yet, so it cannot have bent the ceilings.
        timer, _ = tools(self.device)
        self.send(Calibrated(ceilings=ceilings.measure(self.device, timer)))

    def compile(self, request: Compile) -> None:
        self._open()
        self.step(Step(phase="compilation", implementation=request.implementation))
        self._answer(lambda session: session.compile(request))

    def measure(self, request: Measure) -> None:
        assert self.mailbox is not None
        self.mailbox.map(max((f.nbytes for f in request.prepared.forms.values()), default=0))
        self._answer(lambda session: session.measure(request, self.step, self.deliver))
        self.mailbox.close()

    def deliver(self, delivery: Delivery, sets: InputSets, results: Sequence[Tensor]) -> bool:
        """Hand the results of a call to the checker; return whether they are right."""
        assert self.mailbox is not None
        self.mailbox.put(sets.form, results)
        self.send(delivery)
        return Checked.model_validate_json(sys.stdin.buffer.readline()).right

    def _open(self) -> Session:
        from nsabench.worker.session import Session

        if self.session is None:
            self.session = Session.open(self.device, self.kernels, self.sources, self.ops_file)
        return self.session

    def _answer(self, answer: Callable[[Session], Message]) -> None:
        from nsabench.failure import DeviceLost

        session = self._open()
        try:
            self.send(answer(session))
        except DeviceLost as lost:
            self.send(LostDevice(implementation=lost.implementation, reason=str(lost)))
            raise SystemExit(1) from lost


if __name__ == "__main__":
    main()

"""The process that records and compiles for one architecture, under one Triton."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from nsabench import registry
from nsabench.errors import NsabenchError
from nsabench.failure import Failure
from nsabench.messages import Refused, Step
from nsabench.preflight import driver
from nsabench.preflight.architectures import ARCHITECTURES, Architecture
from nsabench.preflight.build import build
from nsabench.preflight.candidates import launches
from nsabench.preflight.messages import REQUEST, Build, Launch, Record, Recorded, Trouble
from nsabench.preflight.record import Call, triton_version
from nsabench.registry import Implementation
from nsabench.words import Role, Status
from nsabench.worker.channel import Channel, die_with


def main() -> None:
    parser = argparse.ArgumentParser(prog="nsabench.preflight.worker")
    parser.add_argument("--arch", choices=list(ARCHITECTURES), required=True)
    parser.add_argument("--kernels", type=Path)
    parser.add_argument("--parent", type=int, required=True)
    options = parser.parse_args()
    channel = Channel.claim_stdout()
    die_with(options.parent)
    try:
        Worker(ARCHITECTURES[options.arch], options.kernels, channel).serve()
    except NsabenchError as error:
        channel.send(
            Refused(sentence=str(error), remedy=error.remedy, exit_code=error.exit_code),
        )


class Worker:
    def __init__(self, architecture: Architecture, kernels: Path | None, channel: Channel) -> None:
        self.architecture = architecture
        self.kernels = kernels
        self.channel = channel
        self._calls: dict[str, Call] = {}

    def serve(self) -> None:
        self.channel.send(Step(phase="start"))
        driver.install(self.architecture)
        for line in sys.stdin.buffer:
            match REQUEST.validate_json(line):
                case Record() as request:
                    self.channel.send(self.record(request))
                case Build(key=key):
                    call = self._calls[key]
                    self.channel.send(Step(phase=f"compiling {call.kernel}"))
                    self.channel.send(build(call, self.architecture))

    def record(self, request: Record) -> Recorded:
        wanted = self._candidates()
        found: dict[tuple[str, str, str], Launch] = {}
        troubles: dict[tuple[str, str, str], Trouble] = {}
        for item in wanted:
            if f"{item.op}/{item.name}" in request.skip:
                continue
            self.channel.send(Step(phase="recording", implementation=f"{item.op}/{item.name}"))
            for case in request.cases:
                if case.op != item.op:
                    continue
                try:
                    calls = launches(item, case, self.architecture)
                    if not calls:
                        raise Failure(Status.SKIPPED, "it launches no Triton kernel")
                except Failure as failure:
                    trouble = Trouble(
                        op=item.op,
                        implementation=item.name,
                        status=failure.status,
                        reason=str(failure),
                        example=case.label,
                        cases=0,
                    )
                    key = (item.op, item.name, str(failure))
                    troubles.setdefault(key, trouble).cases += 1
                    continue
                for call_key, call in {call.key(): call for call in calls}.items():
                    self._calls.setdefault(call_key, call)
                    launch = Launch(
                        key=call_key,
                        op=item.op,
                        implementation=item.name,
                        kernel=call.kernel,
                        signature=call.signature(),
                        constants=call.constants(),
                        options=call.options(),
                        example=case.label,
                        cases=0,
                    )
                    found.setdefault((item.op, item.name, call_key), launch).cases += 1
        return Recorded(
            triton=triton_version(),
            torch=str(torch.__version__),
            launches=list(found.values()),
            troubles=list(troubles.values()),
        )

    def _candidates(self) -> list[Implementation]:
        """The user's, where there is a file of theirs; else all that are installed."""
        found = [i for i in registry.load(self.kernels) if i.role is Role.CANDIDATE]
        if self.kernels is None:
            return found
        return [i for i in found if i.source.startswith(f"{self.kernels.name}@")]


if __name__ == "__main__":
    main()

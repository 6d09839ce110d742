"""The process that records and compiles for one architecture, under one Triton."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import triton

from nsabench import labels, registry
from nsabench.errors import NsabenchError
from nsabench.failure import Failure
from nsabench.model.case import Case
from nsabench.model.vocabulary import Role, Status
from nsabench.preflight import pretend
from nsabench.preflight.architectures import ARCHITECTURES, Architecture
from nsabench.preflight.build import AheadCall, build, variants
from nsabench.preflight.candidates import launches
from nsabench.preflight.messages import (
    REQUEST,
    Build,
    Foreign,
    Launch,
    RecordedLaunches,
    RecordLaunches,
    Trouble,
)
from nsabench.preflight.record import Call
from nsabench.registry import Implementation
from nsabench.worker.channel import Channel, die_with
from nsabench.worker.protocol import Refused, Step


def main() -> None:
    parser = argparse.ArgumentParser(prog="nsabench.preflight.worker")
    parser.add_argument("--arch", choices=list(ARCHITECTURES), required=True)
    parser.add_argument("--cache", required=True)
    parser.add_argument("--kernels", type=Path)
    parser.add_argument("--ops", type=Path)
    parser.add_argument("--parent", type=int, required=True)
    options = parser.parse_args()
    channel = Channel.claim_stdout()
    die_with(options.parent)
    os.environ["TRITON_CACHE_DIR"] = options.cache
    try:
        foreign = Foreign(options.kernels, options.ops)
        Worker(ARCHITECTURES[options.arch], foreign, channel).serve()
    except NsabenchError as error:
        channel.send(
            Refused(sentence=str(error), remedy=error.remedy, exit_code=error.exit_code),
        )


class Worker:
    def __init__(self, architecture: Architecture, foreign: Foreign, channel: Channel) -> None:
        self.architecture = architecture
        self.foreign = foreign
        self.channel = channel
        self._calls: dict[str, Call | AheadCall] = {}

    def serve(self) -> None:
        self.channel.send(Step(phase="start"))
        pretend.install_driver(self.architecture)
        for line in sys.stdin.buffer:
            match REQUEST.validate_json(line):
                case RecordLaunches() as request:
                    self.channel.send(self.record(request))
                case Build(key=key):
                    call = self._calls[key]
                    self.channel.send(Step(phase=f"compiling {call.kernel}"))
                    self.channel.send(build(call, self.architecture))

    def record(self, request: RecordLaunches) -> RecordedLaunches:
        launches: dict[tuple[str, str, str], Launch] = {}
        troubles: dict[tuple[str, str, str], Trouble] = {}
        for item in self._candidates():
            if f"{item.op}/{item.name}" in request.skip:
                continue
            cases = [case for case in request.cases if case.op == item.op]
            # A kernel that is compiled ahead is the same for every case.
            groups = [[case] for case in cases]
            if item.compile_ahead is not None:
                groups = [cases] if cases and request.ahead else []
            if groups:
                step = Step(phase="recording", implementation=f"{item.op}/{item.name}")
                self.channel.send(step)
            for group in groups:
                common: dict[str, Any] = {"op": item.op, "implementation": item.name, "cases": 0}
                common["example"] = labels.of_case(group[0])
                try:
                    calls = self._calls_of(item, group[0])
                except Failure as failure:
                    trouble = Trouble(status=failure.status, reason=str(failure), **common)
                    found = (item.op, item.name, trouble.reason)
                    troubles.setdefault(found, trouble).cases += len(group)
                    continue
                for key, call in calls.items():
                    self._calls.setdefault(key, call)
                    launch = Launch(
                        key=key,
                        kernel=call.kernel,
                        signature=call.signature(),
                        constants=call.constants(),
                        options=call.options(),
                        compiler=call.compiler,
                        **common,
                    )
                    launches.setdefault((item.op, item.name, key), launch).cases += len(group)
        return RecordedLaunches(
            triton=str(triton.__version__),
            torch=str(torch.__version__),
            launches=list(launches.values()),
            troubles=list(troubles.values()),
        )

    def _calls_of(self, item: Implementation, case: Case) -> dict[str, Call | AheadCall]:
        """Return the distinct launches of a case. Raises `Failure` if there is none."""
        calls: Sequence[Call | AheadCall]
        if item.compile_ahead is None:
            calls = launches(item, case, self.architecture)
        else:
            calls = variants(item, self.architecture)
        if not calls:
            raise Failure(Status.SKIPPED, "it launches no kernel that can be compiled ahead")
        return {call.key(): call for call in calls}

    def _candidates(self) -> list[Implementation]:
        """Return the candidates of the user's file, or all installed ones without a file."""
        kernels = self.foreign.kernels
        loaded = registry.load(kernels, ops_file=self.foreign.ops)
        candidates = [i for i in loaded if i.role is Role.CANDIDATE]
        if kernels is None:
            return candidates
        return [i for i in candidates if i.source.is_of(kernels)]


if __name__ == "__main__":
    main()

"""The process that records and compiles for one architecture and Triton."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import torch
import triton

from nsabench import labels, registry
from nsabench.errors import NsabenchError
from nsabench.failure import Failure
from nsabench.model.case import Case
from nsabench.model.vocabulary import Role, Status
from nsabench.preflight import pretend
from nsabench.preflight.architectures import ARCHITECTURES, Architecture
from nsabench.preflight.build import build
from nsabench.preflight.candidates import launches, variants
from nsabench.preflight.launch import REQUEST, Build, Built, CompiledLaunch, Record, Recorded
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
    channel.send(Step(phase="start"))
    architecture = ARCHITECTURES[options.arch]
    pretend.install_driver(architecture)
    try:
        candidates = _load_candidates(options.kernels, options.ops)
        Worker(architecture, candidates, channel).serve()
    except NsabenchError as error:
        channel.send(
            Refused(sentence=str(error), remedy=error.remedy, exit_code=error.exit_code),
        )


def _load_candidates(kernels: Path | None, ops_file: Path | None) -> list[Implementation]:
    """Return the candidates of the user's file, or all installed ones without a file."""
    loaded = registry.load(kernels, ops_file=ops_file)
    candidates = [i for i in loaded if i.role is Role.CANDIDATE]
    return [i for i in candidates if kernels is None or i.source.is_of(kernels)]


class Worker:
    def __init__(
        self, architecture: Architecture, candidates: list[Implementation], channel: Channel
    ) -> None:
        self.architecture = architecture
        self.candidates = candidates
        self.channel = channel
        self._calls: dict[str, Call] = {}

    def serve(self) -> None:
        for line in sys.stdin.buffer:
            match REQUEST.validate_json(line):
                case Record() as request:
                    self.channel.send(self.record(request))
                case Build(launch=launch):
                    self.channel.send(Step(phase=f"compiling {launch.kernel}"))
                    call = self._calls[launch.key]
                    self.channel.send(Built(launch=build(launch, call, self.architecture)))

    def record(self, request: Record) -> Recorded:
        rows: dict[tuple[str, str, str], CompiledLaunch] = {}
        for item in self.candidates:
            if f"{item.op}/{item.name}" in request.skip:
                continue
            cases = [case for case in request.cases if case.op == item.op]
            # Kernels that are compiled ahead do not depend on the case.
            groups = [[case] for case in cases]
            if item.compile_ahead is not None:
                groups = [cases] if cases and request.ahead else []
            if groups:
                step = Step(phase="recording", implementation=f"{item.op}/{item.name}")
                self.channel.send(step)
            for group in groups:
                for row in self._rows_of(item, group[0]):
                    same = row.key or row.reason
                    rows.setdefault((item.op, item.name, same), row).cases += len(group)
        # Rows without a launch come first.
        return Recorded(launches=sorted(rows.values(), key=lambda row: bool(row.key)))

    def _rows_of(self, item: Implementation, case: Case) -> list[CompiledLaunch]:
        """Return a row for each distinct launch of a case, or one row with the reason."""
        common = CompiledLaunch(
            op=item.op,
            implementation=item.name,
            example=labels.of_case(case),
            cases=0,
            triton=str(triton.__version__),
            torch=str(torch.__version__),
            architecture=self.architecture.name,
        )
        try:
            if item.compile_ahead is None:
                calls = launches(item, case, self.architecture)
            else:
                calls = variants(item, self.architecture)
            if not calls:
                raise Failure(Status.SKIPPED, "it launches no kernel that can be compiled ahead")
        except Failure as failure:
            changed = {"status": failure.status, "reason": str(failure)}
            return [common.model_copy(update=changed)]
        distinct = {call.key: call for call in calls}
        self._calls = distinct | self._calls
        return [
            common.model_copy(
                update={
                    "key": key,
                    "kernel": call.kernel,
                    "signature": call.signature,
                    "constants": call.constants,
                    "options": call.options,
                    "compiler": call.compiler,
                }
            )
            for key, call in distinct.items()
        ]


if __name__ == "__main__":
    main()

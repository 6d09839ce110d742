"""The process that records and compiles launches for one architecture, with one Triton."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import NamedTuple

import torch
import triton
from triton.compiler.errors import CompilationError

from nsabench import labels, registry
from nsabench.channel import Channel, Refused, Step, die_with
from nsabench.errors import NsabenchError
from nsabench.failure import Failure
from nsabench.model.case import Case
from nsabench.model.vocabulary import Role, Status
from nsabench.preflight import pretend
from nsabench.preflight.launch import (
    REQUEST,
    Build,
    Built,
    CompiledLaunch,
    RecordedLaunches,
    RecordLaunches,
)
from nsabench.preflight.record import CompiledKernel, Launchable, list_launches, list_variants
from nsabench.preflight.targets import ARCHITECTURES, KIB, RESERVED_SHARED, Architecture
from nsabench.registry import Implementation
from nsabench.worker.guard import guarded, one_line

REASON_LENGTH = 400
_FUNCTION = re.compile(r"Function (\S+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")
_TOOL_LIMIT_S = 60


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
        PreflightWorker(architecture, candidates, channel).serve()
    except NsabenchError as error:
        refused = Refused(sentence=str(error), remedy=error.remedy, exit_code=error.exit_code)
        channel.send(refused)


def _load_candidates(kernels: Path | None, ops_file: Path | None) -> list[Implementation]:
    """Return the candidates of the user's file, or all installed ones without a file."""
    loaded = registry.load(kernels, ops_file=ops_file)
    candidates = [i for i in loaded if i.role is Role.CANDIDATE]
    return [i for i in candidates if kernels is None or i.source.is_of(kernels)]


@dataclass
class PreflightWorker:
    architecture: Architecture
    candidates: list[Implementation]
    channel: Channel
    calls: dict[str, Launchable] = field(default_factory=dict)

    def serve(self) -> None:
        for line in sys.stdin.buffer:
            match REQUEST.validate_json(line):
                case RecordLaunches() as request:
                    self.channel.send(self._record(request))
                case Build(launch=launch):
                    self.channel.send(Step(phase=f"compiling {launch.kernel}"))
                    built = build(launch, self.calls[launch.key], self.architecture)
                    self.channel.send(Built(launch=built))

    def _record(self, request: RecordLaunches) -> RecordedLaunches:
        rows: dict[tuple[str, str, str], CompiledLaunch] = {}
        for item in self.candidates:
            name = f"{item.op}/{item.name}"
            cases = [case for case in request.cases if case.op == item.op]
            if name in request.skip or not cases:
                continue
            # Kernels of `compile_ahead` are the same in all cases.
            groups = [[case] for case in cases]
            if item.compile_ahead is not None:
                groups = [cases] if request.ahead else []
            if groups:
                self.channel.send(Step(phase="recording", implementation=name))
            for group in groups:
                for row in self._list_rows(item, group[0]):
                    same = row.key or row.reason
                    rows.setdefault((item.op, item.name, same), row).cases += len(group)
        return RecordedLaunches(launches=sorted(rows.values(), key=lambda row: bool(row.key)))

    def _list_rows(self, item: Implementation, case: Case) -> list[CompiledLaunch]:
        common = CompiledLaunch(
            op=item.op,
            implementation=item.name,
            example=labels.case_with_op(case),
            cases=0,
            triton=str(triton.__version__),
            torch=str(torch.__version__),
            architecture=self.architecture.name,
        )
        try:
            if item.compile_ahead is None:
                calls = list_launches(item, case, self.architecture)
            else:
                calls = list_variants(item, self.architecture)
            if not calls:
                raise Failure(Status.SKIPPED, "it launches no kernel that can be compiled ahead")
        except Failure as failure:
            changed = {"status": failure.status, "reason": str(failure)}
            return [common.model_copy(update=changed)]
        distinct = {call.key: call for call in calls}
        self.calls = distinct | self.calls
        return [
            common.model_copy(update={"key": key, **call.describe()})
            for key, call in distinct.items()
        ]


def build(launch: CompiledLaunch, call: Launchable, architecture: Architecture) -> CompiledLaunch:
    """Compile a launch. Errors become statuses; an abort of the compiler ends this process."""
    began = time.monotonic()
    try:
        compiled = guarded(call.compile, "cpu")
    except Failure as failure:
        # Any exception in `call.compile` comes from the compiler.
        status = Status.COMPILE_ERROR if failure.status is Status.CRASHED else failure.status
        changed = {"status": status, "reason": _explain_failure(failure)}
        return launch.model_copy(update={**changed, "compile_s": time.monotonic() - began})
    compile_s = time.monotonic() - began
    usage = _read_usage(compiled)
    static = usage.shared_bytes
    if static and architecture.capability >= 90:
        static -= RESERVED_SHARED  # the limit of a block does not include this part
    shared, limit = compiled.dynamic_shared_bytes + static, architecture.shared_per_block
    status, reason = Status.OK, ""
    if shared > limit:
        status = Status.OUT_OF_MEMORY
        reason = (
            f"it needs {shared / KIB:.1f} KiB of shared memory, but {architecture.name} gives a "
            f"block {limit // KIB} KiB"
        )
    return launch.model_copy(
        update={
            "status": status,
            "reason": reason,
            "registers": usage.registers,
            "spill_bytes": usage.spill_bytes,
            "shared_bytes": shared,
            "shared_limit_bytes": limit,
            "warps": compiled.warps,
            "cubin_bytes": len(compiled.cubin),
            "compile_s": compile_s,
        }
    )


def _explain_failure(failure: Failure) -> str:
    """Return the innermost error, without the source that Triton quotes for each outer kernel."""
    error: BaseException = failure
    while error.__cause__ is not None:
        error = error.__cause__
    text = one_line(error, limit=10_000)
    if isinstance(error, CompilationError):
        # The message follows a line of source and a caret.
        _, caret, message = text.rpartition("^ ")
        text = f"{message} ({text[: text.find(':')]})" if caret else text
    return f"{type(error).__name__}: {text[:REASON_LENGTH]}"


class Usage(NamedTuple):
    """The resources of a kernel. None: Triton's cuobjdump does not report them."""

    registers: int | None = None  # for each thread
    spill_bytes: int | None = None  # for each thread
    shared_bytes: int = 0  # static shared memory of a block, with the driver's part


def _read_usage(compiled: CompiledKernel) -> Usage:
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.cubin)
        file.flush()
        try:
            done = subprocess.run(
                [tool, "-res-usage", file.name],
                capture_output=True,
                text=True,
                timeout=_TOOL_LIMIT_S,
                check=True,
            )
        except (OSError, subprocess.SubprocessError):
            return Usage()
    found = [m for m in _FUNCTION.findall(done.stdout) if compiled.kernel in m[0]]
    if not found:
        return Usage()
    counts = [[int(number) for number in numbers] for _, *numbers in found]
    registers, stack, shared, local = map(max, zip(*counts, strict=True))
    return Usage(registers, max(stack, local), shared)


if __name__ == "__main__":
    main()

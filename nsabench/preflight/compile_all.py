"""Compiles everything for one architecture under one Triton, whatever happens to the compiler."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from nsabench.execution.protocol import Step
from nsabench.execution.supervisor.classify import SIGNATURES, classify
from nsabench.execution.supervisor.loss import WorkerLost
from nsabench.execution.supervisor.process import WorkerProcess
from nsabench.execution.supervisor.program import Program, worker_environment
from nsabench.model.case import Case
from nsabench.model.measurement import Message
from nsabench.model.vocabulary import Status
from nsabench.preflight.architectures import Architecture, declared, occupancy
from nsabench.preflight.compiled_launch import CompiledLaunch
from nsabench.preflight.known import Known
from nsabench.preflight.messages import (
    REPLY,
    Build,
    Built,
    Foreign,
    Launch,
    RecordedLaunches,
    RecordLaunches,
    Trouble,
)

# Where nothing was promised, so many lost processes are answer enough.
ENOUGH_LOST = 3

M = TypeVar("M", bound=Message)


@dataclass(frozen=True)
class Task:
    """An architecture under a Triton; `folder` is None for the Triton that is installed.

    ahead: also kernels that Triton has no part in, which one task of an architecture compiles.
    """

    architecture: Architecture
    triton: str
    folder: Path | None
    ahead: bool


class Compiler:
    """Runs a task in workers of its own."""

    def __init__(
        self,
        task: Task,
        foreign: Foreign,
        timeout_s: float,
        done: Callable[[CompiledLaunch], None],
        known: Known,
    ) -> None:
        """known: what need not be compiled again."""
        self._known = known
        self._task = task
        self._foreign = foreign
        self._timeout_s = timeout_s
        self._done = done
        self._cache = ""
        self._worker: WorkerProcess | None = None
        self._lost: list[Trouble] = []
        self._declared = declared(task.triton, task.architecture.name)
        self.stopped = False

    def stop(self) -> None:
        """End at once, without the launch that is being compiled, which may take for ever; `run`
        returns what there is. Any thread."""
        self.stopped = True
        worker = self._worker
        if worker is not None:
            worker.kill()

    def run(self, cases: list[Case]) -> list[CompiledLaunch]:
        """Record and compile. A worker that is lost costs the launch it was busy with."""
        # A compiler that was killed may be writing to the folder still when it is removed.
        with tempfile.TemporaryDirectory(
            prefix="nsabench-preflight-", ignore_cleanup_errors=True
        ) as self._cache:
            try:
                return self._run(cases)
            finally:
                self._retire()

    def _run(self, cases: list[Case]) -> list[CompiledLaunch]:
        try:
            recorded = self._record(cases)
        except WorkerLost as lost:
            return [] if self.stopped else [self._not_started(lost)]
        rows = [self._trouble(recorded, t) for t in [*recorded.troubles, *self._lost]]
        for row in rows:
            self._done(row)
        crashes = 0
        built: dict[str, Built] = {}
        for launch in recorded.launches:
            if self.stopped:
                break
            # Two implementations may share a kernel, as all that split share their merge.
            if launch.key not in built:
                found = self._known.find(launch)
                if found is not None:
                    built[launch.key] = found
                elif not self._counts(launch) and crashes == ENOUGH_LOST:
                    built[launch.key] = Built(
                        status=Status.UNSUPPORTED,
                        reason=f"not tried: {crashes} others took this Triton down before",
                    )
                else:
                    built[launch.key] = self._build(launch, cases)
                    if self.stopped:
                        break  # nobody knows what would have become of it
                    crashes += self._worker is None
                    self._known.keep(launch, built[launch.key])
            rows.append(self._built(recorded, launch, built[launch.key]))
            self._done(rows[-1])
        return rows

    def _counts(self, launch: Launch) -> bool:
        """What Triton does not compile is declared by its author: `Unsupported`, or it must be."""
        return self._declared or launch.compiler != ""

    def _not_started(self, lost: WorkerLost) -> CompiledLaunch:
        """A Triton that cannot even be imported has failed at everything at once."""
        _, reason = classify(lost)
        trouble = Trouble(
            op="",
            implementation="(all)",
            status=Status.CRASHED if self._declared else Status.UNSUPPORTED,
            reason=reason,
            example="",
        )
        nothing = RecordedLaunches(triton=self._task.triton, torch="", launches=[], troubles=[])
        row = self._trouble(nothing, trouble)
        self._done(row)
        return row

    def _record(self, cases: list[Case]) -> RecordedLaunches:
        """Raises `WorkerLost` when the worker goes while it does nothing for an implementation."""
        while True:
            skip = [f"{t.op}/{t.implementation}" for t in self._lost]
            try:
                request = RecordLaunches(cases=cases, skip=skip, ahead=self._task.ahead)
                return self._ask(request, RecordedLaunches)
            except WorkerLost as lost:
                status, reason = classify(lost)
                if self.stopped or not lost.step.implementation:
                    raise
                op, _, name = lost.step.implementation.partition("/")
                self._lost.append(
                    Trouble(op=op, implementation=name, status=status, reason=reason, example="")
                )

    def _build(self, launch: Launch, cases: list[Case]) -> Built:
        try:
            if self._worker is None:
                self._record(cases)
            built = self._ask(Build(key=launch.key), Built)
        except WorkerLost as lost:
            status, reason = classify(lost)
            return Built(status=status, reason=reason)
        if built.status is Status.COMPILE_ERROR and self._worker is not None:
            built.reason += _diagnostic(self._worker.log.text())
        return built

    def _ask(self, request: Message, expected: type[M]) -> M:
        if self._worker is None:
            self._worker = WorkerProcess(self._program())
        if self.stopped:  # since it was looked for
            self._worker.kill()
        self._worker.log.clear()
        try:
            for reply in self._worker.ask(request, self._timeout_s):
                if not isinstance(reply, Step):
                    assert isinstance(reply, expected)
                    return reply
        except BaseException:
            self._retire()
            raise
        raise AssertionError("a worker's replies end with an answer or an exception")

    def _retire(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.stop()

    def _program(self) -> Program:
        # The cache is an option, since environments that differ have templates that differ.
        options = ["--arch", self._task.architecture.name, "--cache", self._cache]
        options += self._foreign.options
        environment = worker_environment("cuda")
        environment["CUDA_VISIBLE_DEVICES"] = ""
        if self._task.folder is not None:
            path = [str(self._task.folder), environment.get("PYTHONPATH", "")]
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, path))
        return Program("nsabench.preflight.worker", options, environment, REPLY)

    def _trouble(self, recorded: RecordedLaunches, trouble: Trouble) -> CompiledLaunch:
        return CompiledLaunch(
            triton=recorded.triton,
            torch=recorded.torch,
            architecture=self._task.architecture.name,
            declared=self._declared,
            op=trouble.op,
            implementation=trouble.implementation,
            kernel="",
            signature="",
            constants="",
            options="",
            example=trouble.example,
            cases=trouble.cases,
            status=trouble.status,
            reason=trouble.reason,
        )

    def _built(self, recorded: RecordedLaunches, launch: Launch, built: Built) -> CompiledLaunch:
        architecture = self._task.architecture
        occupied = None
        if built.registers is not None and built.warps is not None:
            occupied = occupancy(
                architecture, built.warps, built.registers, built.shared_bytes or 0
            )
        return CompiledLaunch(
            triton=recorded.triton,
            torch=recorded.torch,
            architecture=architecture.name,
            declared=self._counts(launch),
            op=launch.op,
            implementation=launch.implementation,
            kernel=launch.kernel,
            signature=launch.signature,
            constants=launch.constants,
            options=launch.options,
            example=launch.example,
            cases=launch.cases,
            status=built.status,
            reason=built.reason,
            registers=built.registers,
            spill_bytes=built.spill_bytes,
            shared_bytes=built.shared_bytes,
            shared_limit_bytes=architecture.shared_per_block,
            warps=built.warps,
            occupancy=occupied,
            code_bytes=built.code_bytes,
            compile_s=built.compile_s,
            compiler=launch.compiler,
        )


def _diagnostic(log: str) -> str:
    """What MLIR printed of an error that Triton raises without saying which."""
    lines = [line.strip()[:300] for line in log.splitlines()]
    for line in lines:
        if ": error: " in line or any(pattern.search(line) for _, _, pattern in SIGNATURES):
            return f"; {line}"
    return ""

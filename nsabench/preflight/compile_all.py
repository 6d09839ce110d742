"""Compiles all launches for one architecture under one Triton, and survives its compiler."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from nsabench.model.case import Case
from nsabench.model.measurement import Message
from nsabench.model.vocabulary import Status
from nsabench.preflight.architectures import Architecture, declared, occupancy
from nsabench.preflight.compiled_launch import CompiledLaunch
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
from nsabench.running.supervisor.death import SIGNATURES, WorkerLost
from nsabench.running.supervisor.process import WorkerProcess
from nsabench.running.supervisor.program import Program, worker_environment
from nsabench.worker.protocol import Step

# So many lost processes are enough if the Triton is not meant to work.
ENOUGH_LOST = 3

M = TypeVar("M", bound=Message)


@dataclass(frozen=True)
class Task:
    """folder: None for the installed Triton.

    ahead: whether to compile the kernels of other compilers; one task of an architecture does.
    """

    architecture: Architecture
    triton: str
    folder: Path | None
    ahead: bool


class Compiler:
    def __init__(
        self,
        task: Task,
        foreign: Foreign,
        timeout_s: float,
        done: Callable[[CompiledLaunch], None],
        cache: Path,
    ) -> None:
        """done: called with each row. cache: where Triton keeps what it compiles."""
        self._task = task
        self._foreign = foreign
        self._timeout_s = timeout_s
        self._done = done
        self._cache = cache
        self._worker: WorkerProcess | None = None
        self._lost: list[Trouble] = []
        self._declared = declared(task.triton, task.architecture.name)
        self.stopped = False

    def stop(self) -> None:
        """End at once, also while a launch is compiled; `run` returns what is complete.

        Any thread may call this.
        """
        self.stopped = True
        worker = self._worker
        if worker is not None:
            worker.kill()

    def run(self, cases: list[Case]) -> list[CompiledLaunch]:
        """Record and compile. A lost worker costs the launch that it was compiling."""
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
            # Two implementations may share a kernel.
            if launch.key not in built:
                if not self._counts(launch) and crashes == ENOUGH_LOST:
                    built[launch.key] = Built(
                        status=Status.UNSUPPORTED,
                        reason=f"not tried: {crashes} others took this Triton down before",
                    )
                else:
                    built[launch.key] = self._build(launch, cases)
                    if self.stopped:
                        break
                    crashes += self._worker is None
            rows.append(self._built(recorded, launch, built[launch.key]))
            self._done(rows[-1])
        return rows

    def _counts(self, launch: Launch) -> bool:
        """Return whether a failure counts: the Triton is meant to work, or is not used."""
        return self._declared or launch.compiler != ""

    def _not_started(self, lost: WorkerLost) -> CompiledLaunch:
        """Return the one row of a Triton that cannot be imported."""
        trouble = Trouble(
            op="",
            implementation="(all)",
            status=Status.CRASHED if self._declared else Status.UNSUPPORTED,
            reason=lost.reason,
        )
        nothing = RecordedLaunches(triton=self._task.triton, torch="", launches=[], troubles=[])
        row = self._trouble(nothing, trouble)
        self._done(row)
        return row

    def _record(self, cases: list[Case]) -> RecordedLaunches:
        """Raises `WorkerLost` if the worker is lost while it runs no implementation."""
        while True:
            skip = [f"{t.op}/{t.implementation}" for t in self._lost]
            try:
                request = RecordLaunches(cases=cases, skip=skip, ahead=self._task.ahead)
                return self._ask(request, RecordedLaunches)
            except WorkerLost as lost:
                death = lost.death
                if self.stopped or not death.suspect:
                    raise
                op, _, name = death.suspect.partition("/")
                trouble = Trouble(
                    op=op, implementation=name, status=death.status, reason=death.reason
                )
                self._lost.append(trouble)

    def _build(self, launch: Launch, cases: list[Case]) -> Built:
        try:
            if self._worker is None:
                self._record(cases)
            built = self._ask(Build(key=launch.key), Built)
        except WorkerLost as lost:
            return Built(status=lost.death.status, reason=lost.reason)
        if built.status is Status.COMPILE_ERROR and self._worker is not None:
            built.reason += _diagnostic(self._worker.log.text())
        return built

    def _ask(self, request: Message, expected: type[M]) -> M:
        if self._worker is None:
            self._worker = WorkerProcess(self._program())
        if self.stopped:
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
        options = ["--arch", self._task.architecture.name, "--cache", str(self._cache)]
        options += self._foreign.options
        environment = worker_environment("cuda")
        environment["CUDA_VISIBLE_DEVICES"] = ""
        if self._task.folder is not None:
            path = [str(self._task.folder), environment.get("PYTHONPATH", "")]
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, path))
        return Program("nsabench.preflight.worker", options, environment, REPLY)

    def _trouble(self, recorded: RecordedLaunches, trouble: Trouble) -> CompiledLaunch:
        return self._row(recorded, self._declared, trouble.model_dump())

    def _built(self, recorded: RecordedLaunches, launch: Launch, built: Built) -> CompiledLaunch:
        architecture = self._task.architecture
        fields = {
            **launch.model_dump(exclude={"key"}),
            **built.model_dump(exclude={"kind"}),
            "shared_limit_bytes": architecture.shared_per_block,
        }
        if built.registers is not None and built.warps is not None:
            fields["occupancy"] = occupancy(
                architecture, built.warps, built.registers, built.shared_bytes or 0
            )
        return self._row(recorded, self._counts(launch), fields)

    def _row(
        self, recorded: RecordedLaunches, declared: bool, fields: dict[str, Any]
    ) -> CompiledLaunch:
        return CompiledLaunch(
            triton=recorded.triton,
            torch=recorded.torch,
            architecture=self._task.architecture.name,
            declared=declared,
            **fields,
        )


def _diagnostic(log: str) -> str:
    """Return what MLIR printed about an error that Triton raises without a reason."""
    lines = [line.strip()[:300] for line in log.splitlines()]
    for line in lines:
        if ": error: " in line or any(pattern.search(line) for _, _, pattern in SIGNATURES):
            return f"; {line}"
    return ""

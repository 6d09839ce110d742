"""Compiles all launches for one architecture and Triton, and survives crashes of the compiler."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from nsabench.model.case import Case
from nsabench.model.vocabulary import Status
from nsabench.preflight.architectures import Architecture
from nsabench.preflight.launch import REPLY, Build, Built, CompiledLaunch, Record, Recorded
from nsabench.running.supervisor.death import SIGNATURES, WorkerLost
from nsabench.running.supervisor.process import WarmWorker
from nsabench.running.supervisor.program import Program, worker_environment


@dataclass(frozen=True)
class Task:
    """An architecture and a Triton; `folder` is None for the installed one.

    ahead: also compile kernels of other compilers, which happens once an architecture.
    """

    architecture: Architecture
    triton: str
    folder: Path | None
    ahead: bool

    def row(self, op: str, implementation: str, status: Status, reason: str) -> CompiledLaunch:
        return CompiledLaunch(
            op=op,
            implementation=implementation,
            status=status,
            reason=reason,
            triton=self.triton,
            torch=metadata.version("torch"),
            architecture=self.architecture.name,
        )


class Compiler:
    def __init__(
        self,
        task: Task,
        options: Sequence[str],
        timeout_s: float,
        done: Callable[[CompiledLaunch], None],
    ) -> None:
        self._task = task
        self._options = options
        self._timeout_s = timeout_s
        self._done = done
        self._worker = WarmWorker(self._make_program)
        self._lost: list[CompiledLaunch] = []  # while they were recorded
        self._stopped = False

    def stop(self) -> None:
        """Stop at once, from any thread."""
        self._stopped = True
        self._worker.kill()

    def run(self, cases: list[Case]) -> list[CompiledLaunch]:
        """Record and compile. If a worker dies, only the launch that it compiled is lost."""
        rows: list[CompiledLaunch] = []
        try:
            for launch in self._rows_to_build(cases):
                if self._stopped:
                    break
                row = self._build(launch, cases) if launch.key else launch
                rows.append(row)
                self._done(row)
        finally:
            self._worker.retire()
        return rows

    def _rows_to_build(self, cases: list[Case]) -> list[CompiledLaunch]:
        try:
            recorded = self._record(cases)
        except WorkerLost as lost:  # Triton cannot be imported
            return [self._task.row("", "(all)", lost.death.status, lost.death.reason)]
        return [*self._lost, *recorded]

    def _record(self, cases: list[Case]) -> list[CompiledLaunch]:
        """Raises `WorkerLost` if the worker dies outside all implementations."""
        while True:
            skip = [f"{row.op}/{row.implementation}" for row in self._lost]
            try:
                request = Record(cases=cases, skip=skip, ahead=self._task.ahead)
                return self._worker.ask(request, Recorded, self._timeout_s).launches
            except WorkerLost as lost:
                if self._stopped or not lost.death.suspect:
                    raise
                op, _, name = lost.death.suspect.partition("/")
                self._lost.append(self._task.row(op, name, lost.death.status, lost.death.reason))

    def _build(self, launch: CompiledLaunch, cases: list[Case]) -> CompiledLaunch:
        try:
            if self._worker.process is None:
                self._record(cases)
            row = self._worker.ask(Build(launch=launch), Built, self._timeout_s).launch
        except WorkerLost as lost:
            changed = {"status": lost.death.status, "reason": lost.death.reason}
            row = launch.model_copy(update=changed)
        if row.status is Status.COMPILE_ERROR and self._worker.process is not None:
            row.reason += _diagnostic(self._worker.log.text())
        return row

    def _make_program(self) -> Program:
        environment = worker_environment("cuda")
        environment["CUDA_VISIBLE_DEVICES"] = ""
        if self._task.folder is not None:
            path = [str(self._task.folder), environment.get("PYTHONPATH", "")]
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, path))
        options = ["--arch", self._task.architecture.name, *self._options]
        return Program("nsabench.preflight.worker", options, environment, REPLY)


def _diagnostic(log: str) -> str:
    """Return what MLIR printed about an error that Triton raises without a reason."""
    lines = [line.strip()[:300] for line in log.splitlines()]
    for line in lines:
        if ": error: " in line or any(pattern.search(line) for _, _, pattern in SIGNATURES):
            return f"; {line}"
    return ""

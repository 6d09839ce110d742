"""Run a preflight: a pool of workers, each for one architecture and one version of Triton."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from nsabench import ops
from nsabench.files import writing
from nsabench.machine.environment.pairs import numbers
from nsabench.model.case import Case
from nsabench.model.vocabulary import Status
from nsabench.planning import resolve
from nsabench.preflight import targets
from nsabench.preflight.launch import (
    REPLY,
    Build,
    Built,
    CompiledLaunch,
    RecordedLaunches,
    RecordLaunches,
)
from nsabench.preflight.targets import Architecture
from nsabench.running.process import SIGNATURES, WarmProcess, WorkerLost
from nsabench.running.process_tree import Program, make_environment

TIMEOUT_S = 120.0  # the limit of each step, such as a compilation


def run(
    done: Callable[[CompiledLaunch], None],
    *,
    architectures: Sequence[Architecture],
    versions: Sequence[str] = (),
    matrices: Sequence[str] = (),
    kernels: Path | None = None,
    ops_file: Path | None = None,
    jobs: int | None = None,
) -> list[CompiledLaunch]:
    """Compile what is not in the cache, and return a row for each distinct launch.

    `done` receives each row, in several threads, but none about an unsupported architecture.
    Without `versions`, the installed Triton compiles.

    Raises `EnvironmentRefused` if a Triton cannot be installed or the cache cannot be written.
    """
    tasks = _list_tasks(architectures, versions)
    cases = _load_cases(matrices, ops_file)
    cache = targets.cache_folder() / "preflight"
    with writing(cache, f"try again, or name another folder in {targets.CACHE_VARIABLE}"):
        cache.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=cache).close()
    # The cache is an option, since workers with equal environment variables share a parent.
    given = {"--cache": cache, "--kernels": kernels, "--ops": ops_file}
    options = [word for name, file in given.items() if file for word in (name, str(file))]
    compilers = [Compiler(task, options, done) for task in tasks if task.is_supported]
    rows = [task.refuse() for task in tasks if not task.is_supported]
    with ThreadPoolExecutor(jobs or len(os.sched_getaffinity(0))) as pool:
        try:
            for compiled in pool.map(lambda compiler: compiler.run(cases), compilers):
                rows += compiled
        except BaseException:
            for compiler in compilers:
                compiler.stop()
            raise
    return rows


@dataclass(frozen=True)
class Task:
    architecture: Architecture
    triton: str
    folder: Path | None  # the folder of this Triton; None: the installed one
    ahead: bool  # also compile kernels of other compilers; True in one task of each architecture

    @property
    def is_supported(self) -> bool:
        return targets.is_supported(self.triton, self.architecture.name)

    def refuse(self) -> CompiledLaunch:
        reason = f"Triton {self.triton} does not support {self.architecture.name}"
        return self.make_row("", "(all)", Status.UNSUPPORTED, reason)

    def make_row(self, op: str, implementation: str, status: Status, reason: str) -> CompiledLaunch:
        return CompiledLaunch(
            op=op,
            implementation=implementation,
            status=status,
            reason=reason,
            triton=self.triton,
            torch=metadata.version("torch"),
            architecture=self.architecture.name,
        )


def _list_tasks(architectures: Sequence[Architecture], versions: Sequence[str]) -> list[Task]:
    installed = targets.installed_triton()
    folders = {
        version: None if version == installed else targets.install_triton(version)
        for version in versions or [installed]
    }
    newest = max(folders, key=numbers)
    return [
        Task(architecture, version, folder, ahead=version == newest)
        for version, folder in folders.items()
        for architecture in architectures
    ]


def _load_cases(matrices: Sequence[str], ops_file: Path | None) -> list[Case]:
    if ops_file is not None:
        ops.load_file(ops_file)
    loaded = resolve.load_matrices(matrices or list(resolve.shipped_matrices()))
    return list({str(case.content): case for matrix in loaded for case in matrix.cases}.values())


class Compiler:
    def __init__(
        self,
        task: Task,
        options: Sequence[str],
        done: Callable[[CompiledLaunch], None],
    ) -> None:
        self._task = task
        self._options = options
        self._done = done
        self._worker = WarmProcess(self._make_program)
        self._lost: list[CompiledLaunch] = []  # implementations that ended a worker
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True
        self._worker.kill()

    def run(self, cases: list[Case]) -> list[CompiledLaunch]:
        """Record and compile. If a worker dies, only its launch or implementation is lost."""
        rows: list[CompiledLaunch] = []
        try:
            for launch in self._list_launches(cases):
                if self._stopped:
                    break
                row = self._build(launch, cases) if launch.key else launch
                rows.append(row)
                self._done(row)
        finally:
            self._worker.retire()
        return rows

    def _list_launches(self, cases: list[Case]) -> Iterator[CompiledLaunch]:
        try:
            recorded = self._record(cases)
        except WorkerLost as lost:  # for example, Triton cannot be imported
            yield self._task.make_row("", "(all)", lost.death.status, lost.death.reason)
        else:
            yield from [*self._lost, *recorded]

    def _record(self, cases: list[Case]) -> list[CompiledLaunch]:
        """Record launches. Raises `WorkerLost` if the worker dies outside all implementations."""
        while True:
            skip = [f"{row.op}/{row.implementation}" for row in self._lost]
            try:
                request = RecordLaunches(cases=cases, skip=skip, ahead=self._task.ahead)
                return self._worker.ask(request, RecordedLaunches, TIMEOUT_S).launches
            except WorkerLost as lost:
                death = lost.death
                if self._stopped or not death.suspect:
                    raise
                op, _, name = death.suspect.partition("/")
                self._lost.append(self._task.make_row(op, name, death.status, death.reason))

    def _build(self, launch: CompiledLaunch, cases: list[Case]) -> CompiledLaunch:
        try:
            if self._worker.process is None:
                self._record(cases)
            row = self._worker.ask(Build(launch=launch), Built, TIMEOUT_S).launch
        except WorkerLost as lost:
            changed = {"status": lost.death.status, "reason": lost.death.reason}
            row = launch.model_copy(update=changed)
        if row.status is Status.COMPILE_ERROR and self._worker.process is not None:
            row.reason += _find_diagnostic(self._worker.log.text())
        return row

    def _make_program(self) -> Program:
        environment = make_environment("cuda")
        environment["CUDA_VISIBLE_DEVICES"] = ""
        if self._task.folder is not None:
            path = [str(self._task.folder), environment.get("PYTHONPATH", "")]
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, path))
        options = ["--arch", self._task.architecture.name, *self._options]
        return Program("nsabench.preflight.worker", options, environment, REPLY)


def _find_diagnostic(log: str) -> str:
    """Return `; ` and the line of the log with the reason, which Triton's error may lack; or ""."""
    lines = [line.strip()[:300] for line in log.splitlines()]
    for line in lines:
        if ": error: " in line or any(pattern.search(line) for _, _, pattern in SIGNATURES):
            return f"; {line}"
    return ""

"""Runs a preflight: versions, architectures and a pool of compilers."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path

from nsabench import ops
from nsabench.errors import EnvironmentRefused
from nsabench.files import writing
from nsabench.machine.environment.pairs import numbers
from nsabench.model.case import Case
from nsabench.model.vocabulary import Status
from nsabench.planning import resolve
from nsabench.preflight import tritons
from nsabench.preflight.architectures import Architecture, is_supported
from nsabench.preflight.compile_all import Compiler, Task
from nsabench.preflight.launch import CompiledLaunch

TIMEOUT_S = 120.0  # of one compilation


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
    """Compile everything that the cache does not hold, and return a row for each launch.

    done: receives each row, in several threads. versions: empty for the installed Triton.

    Raises `EnvironmentRefused` if a Triton is missing or the cache cannot be written.
    """
    tasks = _list_tasks(architectures, versions)
    cases = _load_cases(matrices, ops_file)
    cache = tritons.cache_folder() / "preflight"
    with writing(cache, f"try again, or name another folder in {tritons.CACHE_VARIABLE}"):
        cache.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=cache).close()
    # An option and not a variable, since worker templates depend on the environment.
    given = {"--cache": cache, "--kernels": kernels, "--ops": ops_file}
    options = [word for name, file in given.items() if file for word in (name, str(file))]
    rows: list[CompiledLaunch] = []
    compilers: list[Compiler] = []
    for task in tasks:
        if is_supported(task.triton, task.architecture.name):
            compilers.append(Compiler(task, options, TIMEOUT_S, done))
        else:
            reason = f"Triton {task.triton} does not know {task.architecture.name}"
            rows.append(task.row("", "(all)", Status.UNSUPPORTED, reason))
    with ThreadPoolExecutor(jobs or len(os.sched_getaffinity(0))) as pool:
        try:
            for compiled in pool.map(lambda compiler: compiler.run(cases), compilers):
                rows += compiled
        except BaseException:
            for compiler in compilers:
                compiler.stop()
            raise
    return rows


def _list_tasks(architectures: Sequence[Architecture], versions: Sequence[str]) -> list[Task]:
    installed = installed_triton()
    folders: dict[str, Path | None] = {
        version: None if version == installed else tritons.install(version)
        for version in versions or [installed]
    }
    newest = max(folders, key=numbers)
    return [
        Task(architecture, version, folder, ahead=version == newest)
        for version, folder in folders.items()
        for architecture in architectures
    ]


def installed_triton() -> str:
    """Return the version of Triton. Raises `EnvironmentRefused` without Triton or torch."""
    try:
        metadata.version("torch")
        return metadata.version("triton")
    except metadata.PackageNotFoundError as error:
        raise EnvironmentRefused(
            f"{error.name} is not installed, and preflight compiles with it",
            "install `nsabench[torch]`.",
        ) from None


def _load_cases(matrices: Sequence[str], ops_file: Path | None) -> list[Case]:
    if ops_file is not None:
        ops.load_file(ops_file)
    loaded = resolve.load_matrices(matrices or list(resolve.shipped_matrices()))
    return list({str(case.content): case for matrix in loaded for case in matrix.cases}.values())

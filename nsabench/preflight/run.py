"""Runs a preflight: versions, architectures, a pool of compilers, the rows."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from importlib import metadata
from pathlib import Path

from nsabench import ops
from nsabench.errors import EnvironmentRefused
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
    cache: bool = True,
) -> Generator[list[CompiledLaunch], None, None]:
    """Compile everything; yield all rows of an architecture and Triton when they are complete.

    done: receives each row, in several threads. versions: empty for the installed Triton.
    cache: keep compiled code. Raises `EnvironmentRefused` if a Triton is missing.
    """
    tasks = _list_tasks(architectures, versions)
    cases = _load_cases(matrices, ops_file)
    with ExitStack() as stack:
        folder = _find_cache() if cache else None
        if folder is None:
            # A killed compiler may write to the folder while it is removed.
            temporary = tempfile.TemporaryDirectory(
                prefix="nsabench-preflight-", ignore_cleanup_errors=True
            )
            folder = Path(stack.enter_context(temporary))
        # An option and not a variable, since worker templates depend on the environment.
        given = {"--cache": folder, "--kernels": kernels, "--ops": ops_file}
        options = [word for name, file in given.items() if file for word in (name, str(file))]
        supported = [task for task in tasks if is_supported(task.triton, task.architecture.name)]
        for task in tasks:
            if task not in supported:
                reason = f"Triton {task.triton} does not know {task.architecture.name}"
                yield [task.row("", "(all)", Status.UNSUPPORTED, reason)]
        compilers = [Compiler(task, options, TIMEOUT_S, done) for task in supported]
        pool = stack.enter_context(ThreadPoolExecutor(jobs or len(os.sched_getaffinity(0))))
        futures = [pool.submit(compiler.run, cases) for compiler in compilers]
        try:
            for future in as_completed(futures):
                yield future.result()
        except BaseException:
            for future in futures:
                future.cancel()
            for compiler in compilers:
                compiler.stop()
            raise


def _find_cache() -> Path | None:
    """Return the folder for compiled code; None if it cannot be written."""
    folder = tritons.cache_folder() / "preflight"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return None
    return folder


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

"""Runs a preflight: versions, architectures, a pool of compilers, the rows."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from nsabench import ops
from nsabench.errors import EnvironmentRefused
from nsabench.machine.environment.pairs import numbers
from nsabench.model.case import Case
from nsabench.model.vocabulary import Status
from nsabench.planning import resolve
from nsabench.preflight import tritons
from nsabench.preflight.architectures import Architecture, declared
from nsabench.preflight.compile_all import Compiler, Task
from nsabench.preflight.launch import CompiledLaunch

TIMEOUT_S = 120.0  # of one compilation


@dataclass(frozen=True)
class Order:
    """What to compile. versions: empty for the installed Triton. cache: keep compiled code."""

    architectures: Sequence[Architecture]
    versions: Sequence[str]
    matrices: Sequence[str]
    kernels: Path | None
    ops_file: Path | None
    jobs: int | None
    cache: bool


def run(
    order: Order, done: Callable[[CompiledLaunch], None]
) -> Generator[list[CompiledLaunch], None, None]:
    """Compile everything; yield all rows of an architecture and Triton when they are complete.

    done: receives each row, in several threads. Raises `EnvironmentRefused` if a Triton is missing.
    """
    tasks = _tasks(order)
    cases = _cases(order)
    with ExitStack() as stack:
        cache = _kept() if order.cache else None
        if cache is None:
            # A killed compiler may write to the folder while it is removed.
            temporary = tempfile.TemporaryDirectory(
                prefix="nsabench-preflight-", ignore_cleanup_errors=True
            )
            cache = Path(stack.enter_context(temporary))
        # An option and not a variable, since worker templates depend on the environment.
        given = {"--cache": cache, "--kernels": order.kernels, "--ops": order.ops_file}
        options = [word for name, file in given.items() if file for word in (name, str(file))]
        known = [task for task in tasks if declared(task.triton, task.architecture.name)]
        for task in tasks:
            if task not in known:
                reason = f"Triton {task.triton} does not know {task.architecture.name}"
                yield [task.row("", "(all)", Status.UNSUPPORTED, reason)]
        compilers = [Compiler(task, options, TIMEOUT_S, done) for task in known]
        jobs = order.jobs or len(os.sched_getaffinity(0))
        pool = stack.enter_context(ThreadPoolExecutor(jobs))
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


def _kept() -> Path | None:
    """Return the folder for compiled code; None if it cannot be written."""
    folder = tritons.cache_folder() / "preflight"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return None
    return folder


def _tasks(order: Order) -> list[Task]:
    installed = installed_triton()
    folders: dict[str, Path | None] = {
        version: None if version == installed else tritons.install(version)
        for version in order.versions or [installed]
    }
    newest = max(folders, key=numbers)
    return [
        Task(architecture, version, folder, ahead=version == newest)
        for version, folder in folders.items()
        for architecture in order.architectures
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


def _cases(order: Order) -> list[Case]:
    if order.ops_file is not None:
        ops.load_file(order.ops_file)
    loaded = resolve.load_matrices(order.matrices or list(resolve.shipped_matrices()))
    return list({str(case.content): case for one in loaded for case in one.cases}.values())

"""Runs a preflight from end to end: versions, architectures, a pool of compilers, the rows."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from nsabench import ops
from nsabench.errors import EnvironmentRefused, UsageError
from nsabench.machine.environment.pairs import numbers
from nsabench.model.case import Case
from nsabench.planning import resolve
from nsabench.preflight import tritons
from nsabench.preflight.architectures import Architecture
from nsabench.preflight.compile_all import Compiler, Task
from nsabench.preflight.compiled_launch import CompiledLaunch
from nsabench.preflight.messages import Foreign


@dataclass(frozen=True)
class Order:
    """versions: empty: the installed Triton. cache: keep what Triton compiles."""

    architectures: Sequence[Architecture]
    versions: Sequence[str] = ()
    matrices: Sequence[str] = ()
    kernels: Path | None = None
    ops_file: Path | None = None
    timeout_s: float = 120.0
    jobs: int = 0
    cache: bool = False


def run(
    order: Order,
    done: Callable[[CompiledLaunch], None] = lambda launch: None,
    finished: Callable[[Sequence[CompiledLaunch]], None] = lambda compiled: None,
) -> list[CompiledLaunch]:
    """Compile everything. Several threads call `done` and `finished`.

    done: receives each row. finished: receives all rows of an architecture under a Triton.
    Raises `EnvironmentRefused` if a Triton cannot be had, `UsageError` if there is no candidate.
    """
    tasks = _tasks(order)
    cases = _cases(order)
    jobs = order.jobs or len(os.sched_getaffinity(0))

    foreign = Foreign(order.kernels, order.ops_file)

    def compile_one(compiler: Compiler) -> list[CompiledLaunch]:
        compiled = compiler.run(cases)
        if not compiler.stopped:
            finished(compiled)
        return compiled

    with ExitStack() as stack:
        cache = _kept() if order.cache else None
        if cache is None:
            # A killed compiler may still write to the folder while it is removed.
            temporary = tempfile.TemporaryDirectory(
                prefix="nsabench-preflight-", ignore_cleanup_errors=True
            )
            cache = Path(stack.enter_context(temporary))
        compilers = [Compiler(task, foreign, order.timeout_s, done, cache) for task in tasks]
        pool = stack.enter_context(ThreadPoolExecutor(min(jobs, len(tasks))))
        futures = [pool.submit(compile_one, compiler) for compiler in compilers]
        try:
            compiled = [launch for future in futures for launch in future.result()]
        except BaseException:
            for future in futures:
                future.cancel()
            for compiler in compilers:
                compiler.stop()
            raise
    if not compiled:
        raise UsageError(
            "no candidate has a case in these matrices, so that nothing was compiled",
            "name matrices of the candidates' ops; `nsabench plan MATRIX` shows who runs.",
        )
    return compiled


def _kept() -> Path | None:
    """Return where what is compiled is kept; None if nothing can be written there."""
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
    """Raises `EnvironmentRefused` if Triton or torch is not installed."""
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

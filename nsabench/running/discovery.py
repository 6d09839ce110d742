"""What there is to measure: what is installed, told by a process that never imports the user's
file, and what the file adds to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path

from nsabench.errors import UsageError
from nsabench.model.plan import Device, ImplementationInfo
from nsabench.model.source import Source
from nsabench.model.vocabulary import Role
from nsabench.running.supervisor.death import WorkerLost
from nsabench.running.supervisor.executor import WorkerExecutor
from nsabench.sources import digest_of


def discover(
    device: Device,
    kernels: Path | None,
    ops_file: Path | None,
    sources: Mapping[str, str],
    *,
    sandboxed: bool,
) -> list[ImplementationInfo]:
    """What is installed and what the user's file adds.

    kernels, ops_file: absolute. Raises `UsageError` when something cannot be imported, or the file
    alters what is installed.
    """
    clean = without(kernels, sources)
    worker = WorkerExecutor(device, None, sources=clean, ops_file=ops_file, sandboxed=sandboxed)
    with closing(worker) as executor:
        installed = of(executor)
    if kernels is None:
        return installed
    worker = WorkerExecutor(
        device, kernels, sources=sources, ops_file=ops_file, sandboxed=sandboxed
    )
    with closing(worker) as executor:
        return joined(kernels, sources, installed, of(executor))


def of(executor: WorkerExecutor) -> list[ImplementationInfo]:
    """What an executor's workers import. Raises `UsageError` when they cannot."""
    try:
        return executor.discover()
    except WorkerLost as lost:
        what = executor.kernels or "the implementations"
        raise UsageError(
            f"{what} could not be imported: {lost.reason}",
            "import it in a Python of its own to see why.",
        ) from None


def without(kernels: Path | None, sources: Mapping[str, str]) -> dict[str, str]:
    """The sources but for the user's file."""
    own = _of_file(kernels, sources) if kernels is not None else None
    return {source: digest for source, digest in sources.items() if source != own}


def joined(
    kernels: Path,
    sources: Mapping[str, str],
    installed: Sequence[ImplementationInfo],
    beside: Iterable[ImplementationInfo],
) -> list[ImplementationInfo]:
    """What is there with the user's file, in the order that it has `beside` the file.

    Raises `UsageError` when something that is installed is there no more, or is another, or when
    something is there that is neither installed nor the file's.
    """
    known = {(info.op, info.name): info for info in installed}
    found = {(info.op, info.name): info for info in beside}
    own = _of_file(kernels, sources)
    altered = [key for key, info in known.items() if found.get(key) != info]
    # The controls of an op are wrapped around its first baseline, which may be the file's.
    altered += [
        key
        for key, info in found.items()
        if key not in known and info.source != own and info.role is not Role.CONTROL
    ]
    if altered:
        op, name = altered[0]
        more = f" and {len(altered) - 1} more" if len(altered) > 1 else ""
        raise UsageError(
            f"{kernels} alters what is installed: {name} of {op}{more}",
            "a file of kernels adds implementations under names of their own, and nothing else.",
        )
    return list(found.values())


def _of_file(kernels: Path, sources: Mapping[str, str]) -> Source:
    return Source.of_digest(kernels, digest_of(kernels, sources))

"""Find what is installed, without the user's file, and what that file adds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path

from nsabench.errors import UsageError
from nsabench.model.plan import Device, ImplementationInfo
from nsabench.model.source import Source
from nsabench.model.vocabulary import Role
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
    """Return all implementations. Raises `UsageError` if an import fails, as `join_file` does."""

    def list_with(file: Path | None, imported: Mapping[str, str]) -> list[ImplementationInfo]:
        worker = WorkerExecutor(
            device, file, sources=imported, ops_file=ops_file, sandboxed=sandboxed
        )
        with closing(worker):
            return worker.discover()

    installed = list_with(None, without_file(kernels, sources))
    if kernels is None:
        return installed
    return join_file(kernels, sources, installed, list_with(kernels, sources))


def without_file(kernels: Path | None, sources: Mapping[str, str]) -> dict[str, str]:
    own = Source.of_digest(kernels, digest_of(kernels, sources)) if kernels is not None else None
    return {source: digest for source, digest in sources.items() if source != own}


def join_file(
    kernels: Path,
    sources: Mapping[str, str],
    installed: Sequence[ImplementationInfo],
    loaded: Iterable[ImplementationInfo],
) -> list[ImplementationInfo]:
    """Return `loaded`. Raises `UsageError` if the file has altered what is installed."""
    before = {(info.op, info.name): info for info in installed}
    after = {(info.op, info.name): info for info in loaded}
    own = Source.of_digest(kernels, digest_of(kernels, sources))
    altered = [key for key, info in before.items() if after.get(key) != info]
    # The controls of an op are wrapped around its first baseline, which may be the file's.
    altered += [
        key
        for key, info in after.items()
        if key not in before and info.source != own and info.role is not Role.CONTROL
    ]
    if altered:
        op, name = altered[0]
        raise UsageError(
            f"{kernels} alters what is installed: {name} of {op}",
            "a file of kernels adds implementations under names of their own, and nothing else.",
        )
    return list(after.values())

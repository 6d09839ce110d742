"""Which implementations there are: those installed, and those that the user's file adds.

A process that never imports the file lists what is installed.
"""

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
    """Return what is installed and what the user's file adds.

    Raises `UsageError` if something cannot be imported, or the file alters what is installed.
    """

    def listed(file: Path | None, imported: Mapping[str, str]) -> list[ImplementationInfo]:
        worker = WorkerExecutor(
            device, file, sources=imported, ops_file=ops_file, sandboxed=sandboxed
        )
        with closing(worker) as executor:
            return executor.discover()

    installed = listed(None, without(kernels, sources))
    if kernels is None:
        return installed
    return joined(kernels, sources, installed, listed(kernels, sources))


def without(kernels: Path | None, sources: Mapping[str, str]) -> dict[str, str]:
    """Return the sources except the user's file."""
    own = _of_file(kernels, sources) if kernels is not None else None
    return {source: digest for source, digest in sources.items() if source != own}


def joined(
    kernels: Path,
    sources: Mapping[str, str],
    installed: Sequence[ImplementationInfo],
    beside: Iterable[ImplementationInfo],
) -> list[ImplementationInfo]:
    """Return what is there `beside` the user's file, in that order.

    Raises `UsageError` if the file removes or alters what is installed, or adds to another source.
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

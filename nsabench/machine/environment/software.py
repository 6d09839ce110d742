"""Reads what is installed, and what the worker loaded of it."""

from __future__ import annotations

import hashlib
import platform
import re
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from nsabench.machine.environment.model import NO_WORKER, Software, Torch
from nsabench.model.description import Described, DescribedSoftware
from nsabench.model.version import __version__

LOCK_VARIABLE = "NSABENCH_LOCK_FILE"  # set by our images: the lock that they were built from
LOCK_NAME = "lock.txt"  # beside bin, in our virtual environments


def read_software(
    described: Described | None,
    variables: Mapping[str, str],
    absent: dict[str, str],
) -> Software:
    """Return the installation and, if there is one, the worker's description of it."""
    software = described.software if described is not None else DescribedSoftware()
    silent = NO_WORKER if described is None else "the worker did not say"
    torch = _torch(software)
    if torch is None:
        absent["software.torch"] = software.why("torch") or silent
    for name, version in (("triton", software.triton), ("numpy", software.numpy)):
        if version is None:
            absent[f"software.{name}"] = software.why(name) or silent
    libraries = {}
    for name, version in software.libraries.items():
        if version is None:
            absent[f"software.libraries.{name}"] = software.why(name) or silent
        else:
            libraries[name] = version
    return Software(
        nsabench=__version__,
        python=platform.python_version(),
        torch=torch,
        triton=software.triton,
        numpy=software.numpy,
        libraries=libraries,
        distributions=_list_distributions(),
        lock_sha256=_lock(variables, absent),
    )


def _list_distributions() -> dict[str, str]:
    """Return the version of each distribution; of two with one name, the one that is imported."""
    versions: dict[str, str] = {}
    for installed in metadata.distributions():
        fields = installed.metadata  # each access reads the whole file
        # Remains of a broken uninstall have no name.
        name = fields["Name"] if fields is not None else None
        if name:
            versions.setdefault(re.sub(r"[-_.]+", "-", name).lower(), fields["Version"] or "")
    return dict(sorted(versions.items()))


def triton_pinned_by_torch() -> str | None:
    """Return the triton that the installed torch requires, if any."""
    try:
        requirements = metadata.requires("torch") or []
    except metadata.PackageNotFoundError:
        return None
    matches = (re.match(r"(?:pytorch-)?triton\s*\(?==\s*([\w.+]+)", text) for text in requirements)
    return next((match[1] for match in matches if match), None)


def _torch(software: DescribedSoftware) -> Torch | None:
    if software.torch is None:
        return None
    usable = software.torch_cuda_usable
    return Torch(
        version=software.torch,
        git=software.torch_git,
        cuda=software.torch_cuda,
        hip=software.torch_hip,
        build=software.torch_build,
        architectures=(software.torch_architectures or "").split(),
        cuda_usable=usable == "true" if usable is not None else None,
        cuda_failure=software.why("torch.cuda_usable"),
        requires_triton=triton_pinned_by_torch(),
        settings=software.settings,
    )


def _lock(variables: Mapping[str, str], absent: dict[str, str]) -> str | None:
    beside = Path(sys.prefix, LOCK_NAME)
    named = variables.get(LOCK_VARIABLE) or (str(beside) if beside.is_file() else "")
    if not named:
        absent["software.lock"] = (
            f"{LOCK_VARIABLE} names no lock: neither an image nor a venv of ours"
        )
        return None
    try:
        return hashlib.sha256(Path(named).read_bytes()).hexdigest()
    except OSError as error:
        absent["software.lock"] = f"the lock cannot be read: {error.strerror}"
        return None

"""What is installed, and what of it the worker loaded."""

from __future__ import annotations

import hashlib
import platform
import re
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from nsabench.machine.environment.model import NO_WORKER, Distribution, Library, Software, Torch
from nsabench.model.description import Described
from nsabench.model.version import __version__

LOCK_VARIABLE = "NSABENCH_LOCK_FILE"  # set by our images: the lock that they were built from
LIBRARIES = (
    "cuda_driver",
    "cuda_runtime",
    "cublas",
    "cublaslt",
    "cudnn",
    "nccl",
    "nvrtc",
    "ptxas",
    "ptxas_blackwell",
)


def read_software(
    described: Described | None,
    variables: Mapping[str, str],
    absent: dict[str, str],
) -> Software:
    """The installation, and the worker's account of it where there is one."""
    told = described.software if described is not None else {}
    silent = NO_WORKER if described is None else "the worker did not say"
    torch = _torch(told)
    if torch is None:
        absent["software.torch"] = told.get("torch.why") or silent
    for name in ("triton", "numpy"):
        if told.get(name) is None:
            absent[f"software.{name}"] = told.get(f"{name}.why") or silent
    libraries = {}
    for name in LIBRARIES:
        if told.get(name) is None:
            absent[f"software.libraries.{name}"] = told.get(f"{name}.why") or silent
        else:
            libraries[name] = Library(version=told[name], file=told.get(f"{name}.file"))
    return Software(
        nsabench=__version__,
        python=platform.python_version(),
        python_implementation=platform.python_implementation(),
        python_compiler=platform.python_compiler(),
        torch=torch,
        triton=told.get("triton"),
        numpy=told.get("numpy"),
        libraries=libraries,
        distributions=distributions(),
        lock_sha256=_lock(variables, absent),
    )


def distributions() -> list[Distribution]:
    """Every installed distribution by name; of two with one name, the one that imports find."""
    found: dict[str, Distribution] = {}
    for installed in metadata.distributions():
        # Remains of a broken uninstall have no name.
        name = installed.metadata["Name"] if installed.metadata is not None else None
        if not name:
            continue
        name = re.sub(r"[-_.]+", "-", name).lower()
        if name not in found:
            record = installed.read_text("RECORD")
            digest = hashlib.sha256(record.encode()).hexdigest() if record else None
            found[name] = Distribution(
                name=name, version=installed.version or "", record_sha256=digest
            )
    return [found[name] for name in sorted(found)]


def triton_pinned_by_torch() -> str | None:
    """The version of triton that the installed torch asks for, if it asks for one."""
    try:
        requirements = metadata.requires("torch") or []
    except metadata.PackageNotFoundError:
        return None
    found = (re.match(r"(?:pytorch-)?triton\s*\(?==\s*([\w.+]+)", text) for text in requirements)
    return next((match[1] for match in found if match), None)


def _torch(told: Mapping[str, str | None]) -> Torch | None:
    version = told.get("torch")
    if version is None:
        return None
    usable = told.get("torch.cuda_usable")
    prefix = "setting."
    settings = {k.removeprefix(prefix): v for k, v in told.items() if k.startswith(prefix) and v}
    return Torch(
        version=version,
        git=told.get("torch.git"),
        cuda=told.get("torch.cuda"),
        hip=told.get("torch.hip"),
        build=told.get("torch.build"),
        architectures=(told.get("torch.architectures") or "").split(),
        cuda_usable=usable == "true" if usable is not None else None,
        cuda_failure=told.get("torch.cuda_usable.why"),
        requires_triton=triton_pinned_by_torch(),
        settings={k: v for k, v in settings.items() if not k.endswith(".why")},
    )


def _lock(variables: Mapping[str, str], absent: dict[str, str]) -> str | None:
    named = variables.get(LOCK_VARIABLE)
    if not named:
        absent["software.lock"] = f"{LOCK_VARIABLE} names no lock: not one of our images"
        return None
    try:
        return hashlib.sha256(Path(named).read_bytes()).hexdigest()
    except OSError as error:
        absent["software.lock"] = f"the lock cannot be read: {error.strerror}"
        return None

"""The architectures and the versions of Triton of a preflight, and how to install a Triton."""

from __future__ import annotations

import hashlib
import os
import re
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from importlib.resources import files
from pathlib import Path

from nsabench import programs
from nsabench.errors import EnvironmentRefused, UsageError
from nsabench.files import user_cache
from nsabench.machine import datasheet
from nsabench.machine.datasheet import Sheet
from nsabench.machine.environment.pairs import numbers

KIB = 1024
REGISTERS = 65536  # the registers of a multiprocessor, on every architecture
RESERVED_SHARED = KIB  # the driver takes this much of the shared memory of each block
LOCK = "tritons.txt"
CACHE_VARIABLE = "NSABENCH_CACHE"
INSTALL_LIMIT_S = 900


@dataclass(frozen=True)
class Architecture:
    """The limits of an architecture (CUDA programming guide), and a GPU that has it."""

    capability: int
    shared_per_block: int
    shared_per_sm: int
    warps_per_sm: int
    gpu: str

    @property
    def name(self) -> str:
        return f"sm_{self.capability}"

    @property
    def sheet(self) -> Sheet:
        return datasheet.find(self.gpu)


ARCHITECTURES = {
    a.name: a
    for a in (
        Architecture(80, 163 * KIB, 164 * KIB, 64, "NVIDIA A100-SXM4-80GB"),
        Architecture(86, 99 * KIB, 100 * KIB, 48, "NVIDIA GeForce RTX 3090"),
        Architecture(89, 99 * KIB, 100 * KIB, 48, "NVIDIA GeForce RTX 4090"),
        Architecture(90, 227 * KIB, 228 * KIB, 64, "NVIDIA H200"),
        Architecture(100, 227 * KIB, 228 * KIB, 64, "NVIDIA B200"),
        Architecture(120, 99 * KIB, 100 * KIB, 48, "NVIDIA GeForce RTX 5090"),
    )
}

# The oldest Triton that compiles for these architectures.
OLDEST_TRITON = {"sm_100": (3, 3), "sm_120": (3, 3)}
OLDEST_SUPPORTED = (3, 0)


def is_supported(triton: str, architecture: str) -> bool:
    return numbers(triton)[:2] >= OLDEST_TRITON.get(architecture, OLDEST_SUPPORTED)


@cache
def locked_tritons() -> dict[str, str]:
    """Return the requirement of each version for pip, with hashes."""
    text = files("nsabench.preflight").joinpath(LOCK).read_text()
    pins = re.findall(r"^triton==([\w.]+)((?:\s*\\\n\s+--hash=\S+)+)", text, re.MULTILINE)
    return {version: f"triton=={version}{hashes}\n" for version, hashes in pins}


def parse_architectures(given: str) -> list[Architecture]:
    names = split_list(given)
    for name in names:
        if name not in ARCHITECTURES:
            raise UsageError(
                f"{name!r} is not an architecture that preflight knows",
                f"give --arch some of {','.join(ARCHITECTURES)}.",
            )
    return [ARCHITECTURES[name] for name in names] or list(ARCHITECTURES.values())


def parse_tritons(given: str) -> list[str]:
    known = sorted(locked_tritons(), key=numbers)
    if given == "all":
        return known
    versions = split_list(given)
    for version in versions:
        if version not in known:
            raise UsageError(
                f"preflight cannot install Triton {version}: it has no hashes of this version",
                f"give --triton some of {', '.join(known)}.",
            )
    return versions


def split_list(given: str) -> list[str]:
    return list(dict.fromkeys(part.strip() for part in given.split(",") if part.strip()))


def installed_triton() -> str:
    try:
        metadata.version("torch")
        return metadata.version("triton")
    except metadata.PackageNotFoundError as error:
        raise EnvironmentRefused(
            f"preflight needs {error.name}, which is not installed",
            "install `nsabench[torch]`.",
        ) from None


def cache_folder() -> Path:
    return Path(os.environ.get(CACHE_VARIABLE) or user_cache())


def install_triton(version: str) -> Path:
    requirement = locked_tritons()[version]
    tag = hashlib.sha256(f"{requirement}{sys.version_info[:2]}".encode()).hexdigest()[:8]
    folder = cache_folder() / "triton" / f"{version}-{tag}"
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        # Install next to the final folder, so that the last step is a rename.
        with tempfile.TemporaryDirectory(prefix=f".{version}-", dir=folder.parent) as temporary:
            _run_installer(version, requirement, Path(temporary))
            (Path(temporary) / "triton.tree").rename(folder)
    except OSError as error:
        if folder.is_dir():  # another process was faster
            return folder
        raise EnvironmentRefused(
            f"Triton {version} cannot be installed in {folder.parent}: {error.strerror}",
            f"make room, or name another folder in {CACHE_VARIABLE}.",
        ) from None
    return folder


def _run_installer(version: str, requirement: str, temporary: Path) -> None:
    lock = temporary / "lock.txt"
    lock.write_text(requirement)
    installer = programs.PIP if programs.has("pip") else programs.UV
    command = [*installer, "install"]
    command += ["--quiet", "--only-binary", ":all:", "--no-deps", "--require-hashes"]
    command += ["--target", str(temporary / "triton.tree"), "--requirement", str(lock)]
    remedy = "check the connection to the package index, or leave this version out of --triton."
    programs.run(command, f"installing Triton {version}", INSTALL_LIMIT_S, remedy)

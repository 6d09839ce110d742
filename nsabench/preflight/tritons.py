"""Installs other Tritons into the cache, checked by their hashes."""

from __future__ import annotations

import hashlib
import os
import re
import sys
import tempfile
from functools import cache
from importlib.resources import files
from pathlib import Path

from nsabench import programs
from nsabench.errors import EnvironmentRefused, UsageError
from nsabench.files import user_cache
from nsabench.machine.environment.pairs import numbers

LOCK = "tritons.txt"
CACHE_VARIABLE = "NSABENCH_CACHE"
INSTALL_LIMIT_S = 900


@cache
def locked() -> dict[str, str]:
    """Return pip's requirement of each version, with hashes."""
    text = files("nsabench.preflight").joinpath(LOCK).read_text()
    pins = re.findall(r"^triton==([\w.]+)((?:\s*\\\n\s+--hash=\S+)+)", text, re.MULTILINE)
    return {version: f"triton=={version}{hashes}\n" for version, hashes in pins}


def parse(given: str) -> list[str]:
    """Return the versions of a list or `all`. Raises `UsageError` for an unknown one."""
    if given == "all":
        return sorted(locked(), key=numbers)
    versions = [version.strip() for version in given.split(",") if version.strip()]
    for version in versions:
        if version not in locked():
            raise UsageError(
                f"Triton {version} is not among those that preflight has hashes of",
                f"give --triton some of {', '.join(sorted(locked(), key=numbers))}.",
            )
    return list(dict.fromkeys(versions))


def cache_folder() -> Path:
    return Path(os.environ.get(CACHE_VARIABLE) or user_cache())


def install(version: str) -> Path:
    """Return the folder of a version, installed if needed. Raises `EnvironmentRefused`."""
    requirement = locked()[version]
    tag = hashlib.sha256(f"{requirement}{sys.version_info[:2]}".encode()).hexdigest()[:8]
    folder = cache_folder() / "triton" / f"{version}-{tag}"
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        # Beside the final place, so that the last step is a rename.
        with tempfile.TemporaryDirectory(prefix=f".{version}-", dir=folder.parent) as temporary:
            _install(version, requirement, Path(temporary))
            (Path(temporary) / "triton.tree").rename(folder)
    except OSError as error:
        if folder.is_dir():  # another process was faster
            return folder
        raise EnvironmentRefused(
            f"Triton {version} cannot be put into {folder.parent}: {error.strerror}",
            f"make room, or name another folder in {CACHE_VARIABLE}.",
        ) from None
    return folder


def _install(version: str, requirement: str, temporary: Path) -> None:
    lock = temporary / "lock.txt"
    lock.write_text(requirement)
    installer = programs.PIP if programs.has("pip") else programs.UV
    command = [*installer, "install"]
    command += ["--quiet", "--only-binary", ":all:", "--no-deps", "--require-hashes"]
    command += ["--target", str(temporary / "triton.tree"), "--requirement", str(lock)]
    remedy = "look at the connection to the package index, or leave this version out of --triton."
    programs.run(command, f"installing Triton {version}", INSTALL_LIMIT_S, remedy)

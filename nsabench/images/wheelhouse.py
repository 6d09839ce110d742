"""A folder with every wheel of a combo, to build its image where there is no network."""

from __future__ import annotations

import sys
from pathlib import Path

from nsabench.errors import UsageError
from nsabench.images import lock, programs
from nsabench.images.combos import Checkout, Combo

LIMIT_S = 3600.0


def existing_lock(checkout: Checkout, name: str) -> Path:
    """Raises `UsageError` when the combo has no lock, or one of other requirements."""
    path = checkout.lock(name)
    remedy = f"make it with `nsabench images lock {name}`."
    if not path.is_file():
        raise UsageError(f"{name} has no lock", remedy)
    if lock.recorded_requirements(path) != lock.requirements(checkout, checkout.combos().get(name)):
        raise UsageError(f"{path} was made before the requirements of {name} changed", remedy)
    return path


def fill(checkout: Checkout, name: str, combo: Combo, folder: Path, links: str = "") -> Path:
    """Download what the lock names, checked by its hashes; what is there already is kept."""
    path = existing_lock(checkout, name)
    folder.mkdir(parents=True, exist_ok=True)
    command: list[str | Path] = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    command += [
        "download",
        "--quiet",
        "--retries",
        "1",
        "--require-hashes",
        "--no-deps",
        "--only-binary",
        ":all:",
    ]
    command += ["--python-version", "3.11", "--implementation", "cp", "--abi", "cp311"]
    command += ["--abi", "abi3", "--abi", "none"]
    for platform in ("manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014"):
        command += ["--platform", f"{platform}_x86_64"]
    for platform in ("manylinux_2_12", "manylinux_2_5", "manylinux2010", "manylinux1", "linux"):
        command += ["--platform", f"{platform}_x86_64"]
    command += ["--find-links", links or folder]
    if combo.index and not links:
        command += ["--extra-index-url", combo.index]
    command += ["--dest", folder, "--requirement", path]
    programs.run(command, f"fetching the wheels of {name}", LIMIT_S)
    return folder

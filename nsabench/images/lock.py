"""Write and read docker/locks/COMBO.txt: pinned packages with hashes."""

from __future__ import annotations

import hashlib
import re
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nsabench import programs
from nsabench.errors import UsageError
from nsabench.files import replacing
from nsabench.images.combos import Checkout, Combo

PYTHON = "3.11"
PLATFORM = "x86_64-manylinux_2_28"
LOCK_LIMIT_S = 600.0
# The image needs these to build nsabench without a network.
BUILD = ("setuptools>=77,<82", "wheel>=0.45")


def requirements(checkout: Checkout, combo: Combo) -> list[str]:
    from packaging.requirements import Requirement  # the extra `images` installs it

    project, kernels = _project(checkout.root), _project(checkout.root / "kernels")
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["report"]]
    # A shard in a container needs obstore to copy its run into a bucket.
    wanted += [r for r in extras["archive"] if Requirement(r).name == "obstore"]
    wanted += kernels["dependencies"]
    pins = [f"torch=={combo.torch}", f"triton=={combo.triton}", f"numpy{combo.numpy}"]
    if combo.cuda is not None:
        wanted += kernels["optional-dependencies"]["cuda"]
        # This package loads torch's CUDA libraries, so the major versions must be equal.
        pins.append(f"cuda-bindings=={combo.cuda.split('.')[0]}.*")
    pins += combo.packages
    pinned = {Requirement(pin).name for pin in pins}
    return [*pins, *BUILD, *(r for r in wanted if Requirement(r).name not in pinned)]


def _project(folder: Path) -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    return project


def write(checkout: Checkout, name: str, exclude_newer: str, links: str = "") -> Path:
    """Resolve a combo with uv and write its lock. Raises `EnvironmentRefused` if uv fails.

    exclude_newer: a date; newer packages are ignored, so the lock is reproducible. links: a folder
    of wheels that replaces the combo's index.
    """
    combo = checkout.combos().get(name)
    wanted, target = requirements(checkout, combo), checkout.lock(name)
    head = [f"{name}: made by `nsabench images lock {name} --exclude-newer {exclude_newer}`"]
    head += [f"asked: {requirement}" for requirement in wanted]
    command: list[str | Path] = [*programs.UV, "compile", "--quiet"]
    command += ["--generate-hashes", "--no-header", "--no-annotate", "--no-emit-find-links"]
    command += ["--python-version", PYTHON, "--python-platform", PLATFORM]
    command += ["--index-strategy", "unsafe-best-match", "--exclude-newer", exclude_newer]
    if links:
        command += ["--find-links", links]
    elif combo.index:
        command += ["--extra-index-url", combo.index]
    with tempfile.NamedTemporaryFile("w", suffix=".in") as listed, replacing(target) as temporary:
        listed.write("\n".join(wanted) + "\n")
        listed.flush()
        temporary.unlink()  # uv would keep the versions of an existing file
        programs.run(
            [*command, "--output-file", temporary, listed.name], f"resolving {name}", LOCK_LIMIT_S
        )
        temporary.write_text("".join(f"# {line}\n" for line in head) + temporary.read_text())
    return target


def existing(checkout: Checkout, name: str) -> Path:
    """Return the lock of a combo. Raises `UsageError` if it is missing or out of date."""
    combo, path = checkout.combos().get(name), checkout.lock(name)
    remedy = f"make it with `nsabench images lock {name}`."
    if not path.is_file():
        raise UsageError(f"{name} has no lock", remedy)
    if recorded_requirements(path) != requirements(checkout, combo):
        raise UsageError(f"{path} was made before the requirements of {name} changed", remedy)
    return path


def recorded_requirements(path: Path) -> list[str]:
    return re.findall(r"^# asked: (.+)$", path.read_text(), re.MULTILINE)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def pinned(path: Path) -> Iterator[tuple[str, str]]:
    for match in re.finditer(r"^([A-Za-z0-9._-]+)==(\S+)", path.read_text(), re.MULTILINE):
        yield match[1], match[2]

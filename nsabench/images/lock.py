"""docker/locks/COMBO.txt: every package of an image, with version and hashes."""

from __future__ import annotations

import hashlib
import re
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nsabench.files import replacing
from nsabench.images import programs
from nsabench.images.combos import Checkout, Combo

PYTHON = "3.11"
PLATFORM = "x86_64-manylinux_2_28"
LIMIT_S = 600.0
FLASH_ATTN = "flash-attn"
FLASH_ATTN_PIN = "flash-attn==2.8.3"
# What builds nsabench itself in the image, where nothing is fetched.
BUILD = ("setuptools>=77,<82", "wheel>=0.45")


def requirements(checkout: Checkout, combo: Combo) -> list[str]:
    """What is asked for: the combo's pins and what nsabench, its report and the kernels need."""
    from packaging.requirements import Requirement  # of the extra `images`

    project, kernels = _project(checkout.root), _project(checkout.root / "kernels")
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["report"]]
    # What a shard needs to go into a bucket; an archive is asked from outside of an image.
    wanted += [r for r in extras["archive"] if Requirement(r).name == "obstore"]
    wanted += kernels["dependencies"]
    pins = [f"torch=={combo.torch}", f"triton=={combo.triton}", f"numpy{combo.numpy}"]
    if combo.numpy == "<2":
        # Later ones do not say that they need numpy 2, and cannot be imported without.
        pins.append("pyarrow>=15,<26")
    if combo.cuda is not None:
        wanted += kernels["optional-dependencies"]["cuda"]
        # They load the libraries that torch brings, which are of this major version.
        pins.append(f"cuda-bindings=={combo.cuda.split('.')[0]}.*")
    pins += combo.packages
    pinned = {Requirement(pin).name for pin in pins}
    return [*pins, *BUILD, *(r for r in wanted if Requirement(r).name not in pinned)]


def _project(folder: Path) -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    return project


def lock(checkout: Checkout, name: str, combo: Combo, exclude_newer: str, links: str = "") -> Path:
    """Resolve a combo and write its lock. Raises `NsabenchError` when uv cannot.

    exclude_newer: a date; packages that appeared later are not looked at, so that the same date
    gives the same lock. links: a folder of wheels to look into too.
    """
    options = ["--index-strategy", "unsafe-best-match"]
    if links:
        # With the wheels at hand the combo's own index is not needed, and may be out of reach.
        options += ["--find-links", links]
    elif combo.index:
        options += ["--extra-index-url", combo.index]
    return _write(checkout, name, requirements(checkout, combo), exclude_newer, options)


def lock_flash_attn(checkout: Checkout, exclude_newer: str) -> Path:
    """The sdist of flash-attn, which the target of that name builds."""
    return _write(checkout, FLASH_ATTN, [FLASH_ATTN_PIN], exclude_newer, ["--no-deps"])


def recorded_requirements(path: Path) -> list[str]:
    """The requirements that a lock was made of, as it says itself."""
    return re.findall(r"^# asked: (.+)$", path.read_text(), re.MULTILINE)


def _write(
    checkout: Checkout, name: str, wanted: list[str], exclude_newer: str, options: list[str]
) -> Path:
    target = checkout.lock(name)
    head = [f"{name}: made by `nsabench images lock {name} --exclude-newer {exclude_newer}`"]
    head += [f"asked: {requirement}" for requirement in wanted]
    target.parent.mkdir(exist_ok=True)
    with replacing(target) as temporary:
        _compile(wanted, temporary, [*options, "--exclude-newer", exclude_newer])
        temporary.write_text("".join(f"# {line}\n" for line in head) + temporary.read_text())
    return target


def _compile(wanted: list[str], target: Path, options: list[str]) -> None:
    with tempfile.NamedTemporaryFile("w", suffix=".in") as listed:
        listed.write("\n".join(wanted) + "\n")
        listed.flush()
        command: list[str | Path] = [*programs.find("uv", "uv", "uv"), "pip", "compile", "--quiet"]
        command += ["--generate-hashes", "--no-header", "--no-annotate", "--no-emit-find-links"]
        command += ["--python-version", PYTHON, "--python-platform", PLATFORM]
        command += [*options, "--output-file", target, listed.name]
        target.unlink(missing_ok=True)  # uv would keep the versions of an earlier one
        programs.run(command, f"resolving {target.stem}", LIMIT_S)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def pinned(path: Path) -> Iterator[tuple[str, str]]:
    """Names and versions in a lock."""
    for match in re.finditer(r"^([A-Za-z0-9._-]+)==(\S+)", path.read_text(), re.MULTILINE):
        yield match[1], match[2]

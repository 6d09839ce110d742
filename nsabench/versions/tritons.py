"""The Tritons that a host can measure with: the installed one, a folder's, or the cache's."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from nsabench.errors import UsageError
from nsabench.machine.environment.pairs import numbers, unpaired
from nsabench.preflight import tritons as cached
from nsabench.preflight.run import installed_triton

_VERSION = re.compile(r"\d+(\.\d+)+([a-z+.-][\w.]*)?")


@dataclass(frozen=True)
class Triton:
    """A Triton that processes can be started with. folder: what is put before the installed
    packages; None for the installed one."""

    version: str
    folder: Path | None = None

    @property
    def name(self) -> str:
        """Of the folder of its run."""
        return f"triton-{self.version}"

    @property
    def unpaired(self) -> str:
        """Which Triton the installed torch belongs with, where it is not this one."""
        return unpaired(metadata.version("torch"), self.version)


def in_folder(folder: Path) -> dict[str, Path]:
    """By version, the folders below this one that hold a Triton, as `pip install --target` makes
    them. Raises `UsageError` where there is none, or one version twice."""
    found: dict[str, Path] = {}
    for info in sorted(folder.glob("*/triton-*.dist-info")):
        version = info.name.removeprefix("triton-").removesuffix(".dist-info")
        if not _VERSION.fullmatch(version) or not (info.parent / "triton").is_dir():
            continue
        if version in found:
            raise UsageError(
                f"{folder} holds Triton {version} twice, in {found[version].name} and "
                f"{info.parent.name}",
                "take one of them away.",
            )
        found[version] = info.parent.absolute()
    if not found:
        raise UsageError(
            f"{folder} holds no Triton",
            "fill it with `pip install --no-deps --target FOLDER/3.6.0 triton==3.6.0`.",
        )
    return found


def asked(given: str, folder: Path | None = None) -> list[Triton]:
    """The versions of a list such as `3.1.0,3.6.0`, oldest first. `all`: those of the folder, or
    all that have a hash here. Without a folder each is installed into the cache on first need.

    Raises `UsageError` for a version that is not to be had, `EnvironmentRefused` where one cannot
    be installed.
    """
    installed = installed_triton()
    names = list(dict.fromkeys(part.strip() for part in given.split(",") if part.strip()))
    if folder is not None:
        there = in_folder(folder)
        names = sorted({*there, installed}) if names == ["all"] else names
        lacking = [name for name in names if name not in there and name != installed]
        if lacking:
            raise UsageError(
                f"Triton {lacking[0]} is not in {folder}",
                f"give --triton some of {', '.join(sorted(there, key=numbers))}.",
            )
        chosen = [Triton(name, there.get(name)) for name in names]
    else:
        names = _every(None) if names == ["all"] else names
        cached.parse(",".join(name for name in names if name != installed))
        chosen = [Triton(n, None if n == installed else cached.install(n)) for n in names]
    if not chosen:
        raise UsageError("--triton names no version", "give it some, such as 3.1.0,3.6.0.")
    return sorted(chosen, key=lambda triton: numbers(triton.version))


def among(given: str, folder: Path | None, low: str, high: str) -> list[Triton]:
    """Of the versions of a list, those between two others; only these are installed."""
    names = _every(folder) if given == "all" else [part.strip() for part in given.split(",")]
    inside = [name for name in names if name and numbers(low) < numbers(name) < numbers(high)]
    return asked(",".join(inside), folder) if inside else []


def _every(folder: Path | None) -> list[str]:
    """All versions that are to be had, the installed one among them."""
    there = cached.locked() if folder is None else in_folder(folder)
    return sorted({*there, installed_triton()}, key=numbers)

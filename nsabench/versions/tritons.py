"""The Tritons that a host can measure with: the installed one, those of a folder, and the cache."""

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
    """folder: put before the installed packages; None for the installed Triton."""

    version: str
    folder: Path | None = None

    @property
    def unpaired(self) -> str:
        """The Triton that the installed torch pins, if it is another one."""
        return unpaired(metadata.version("torch"), self.version)


def in_folder(folder: Path) -> dict[str, Path]:
    """Return the subfolders that hold a Triton, by version. Raises `UsageError` without one."""
    found: dict[str, Path] = {}
    for info in sorted(folder.glob("*/triton-*.dist-info")):
        version = info.name.removeprefix("triton-").removesuffix(".dist-info")
        if not _VERSION.fullmatch(version) or not (info.parent / "triton").is_dir():
            continue
        if version in found:
            raise UsageError(
                f"{folder} holds Triton {version} twice, in {found[version].name} and "
                f"{info.parent.name}",
                "remove one of them.",
            )
        found[version] = info.parent.absolute()
    if not found:
        raise UsageError(
            f"{folder} holds no Triton",
            "fill it with `pip install --no-deps --target FOLDER/3.6.0 triton==3.6.0`.",
        )
    return found


def asked(given: str, folder: Path | None = None) -> list[Triton]:
    """Return the Tritons of a list such as `3.1.0,3.6.0`, or `all`, oldest first.

    Without a folder, a version that is not installed is installed into the cache. Raises
    `UsageError` for an unknown version, and `EnvironmentRefused` if one cannot be installed.
    """
    installed = installed_triton()
    folders = {} if folder is None else in_folder(folder)
    known = cached.locked() if folder is None else folders
    names = list(dict.fromkeys(part.strip() for part in given.split(",") if part.strip()))
    if names == ["all"]:
        names = list({*known, installed})
    if not names:
        raise UsageError("--triton names no version", "give it some, such as 3.1.0,3.6.0.")
    others = [name for name in names if name != installed]
    if folder is None:
        cached.parse(",".join(others))
        folders = {name: cached.install(name) for name in others}
    for name in others:
        if name not in folders:
            raise UsageError(
                f"Triton {name} is not in {folder}",
                f"give --triton some of {', '.join(sorted(known, key=numbers))}.",
            )
    return [Triton(name, folders.get(name)) for name in sorted(names, key=numbers)]

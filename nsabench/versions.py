"""Measure matrices under several versions of Triton on this host, in one run for each."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from nsabench.errors import UsageError
from nsabench.evidence.manifest import MANIFEST
from nsabench.files import refuse_filled, whole, writing
from nsabench.fleet.devices import Place, run_at
from nsabench.machine.environment.pairs import numbers, unpaired
from nsabench.output.result import COMPLETE
from nsabench.preflight import targets

ARGUMENTS = "arguments.json"  # the arguments of all runs of a folder
_VERSION = re.compile(r"\d+(\.\d+)+([a-z+.-][\w.]*)?")


@dataclass(frozen=True)
class Triton:
    """A version of Triton. `folder` contains it; None: it is the installed version."""

    version: str
    folder: Path | None = None

    @property
    def variables(self) -> dict[str, str]:
        if self.folder is None:
            return {}
        path = [str(self.folder), os.environ.get("PYTHONPATH", "")]
        return {"PYTHONPATH": os.pathsep.join(filter(None, path))}

    @property
    def unpaired(self) -> str:
        return unpaired(metadata.version("torch"), self.version)


def find_tritons(folder: Path) -> dict[str, Path]:
    """Return subfolders by version of Triton. Raises `UsageError` for none, or two of a version."""
    found: dict[str, Path] = {}
    for info in sorted(folder.glob("*/triton-*.dist-info")):
        version = info.name.removeprefix("triton-").removesuffix(".dist-info")
        if not _VERSION.fullmatch(version) or not (info.parent / "triton").is_dir():
            continue
        if version in found:
            raise UsageError(
                f"{folder} contains Triton {version} twice, in {found[version].name} and "
                f"{info.parent.name}",
                "remove one of them.",
            )
        found[version] = info.parent.absolute()
    if not found:
        raise UsageError(
            f"{folder} contains no Triton",
            "fill it with `pip install --no-deps --target FOLDER/3.6.0 triton==3.6.0`.",
        )
    return found


def parse(given: str, folder: Path | None = None) -> list[Triton]:
    """Return the versions in a list or of `all`, oldest first. Without a `folder`, install them."""
    installed = targets.installed_triton()
    folders = {} if folder is None else find_tritons(folder)
    available = targets.locked_tritons() if folder is None else folders
    names = targets.split_list(given)
    if names == ["all"]:
        names = list({*available, installed})
    if not names:
        raise UsageError("--triton names no version", "name some, such as 3.1.0,3.6.0.")
    others = [name for name in names if name != installed]
    if folder is None:
        targets.parse_tritons(",".join(others))
        folders = {name: targets.install_triton(name) for name in others}
    for name in others:
        if name not in folders:
            raise UsageError(
                f"Triton {name} is not in {folder}",
                f"give --triton some of {', '.join(sorted(available, key=numbers))}.",
            )
    return [Triton(name, folders.get(name)) for name in sorted(names, key=numbers)]


@dataclass(frozen=True)
class MeasuredVersion:
    triton: Triton
    folder: Path
    exit_code: int | None  # None: the run was complete before, and not resumed

    @property
    def finished(self) -> bool:
        return self.exit_code in (None, *COMPLETE)


def measure(
    arguments: Sequence[str],
    folder: Path,
    tritons: Sequence[Triton],
    show: Callable[[str, str], None],
) -> list[MeasuredVersion]:
    """Measure with one Triton after another. Skip finished runs, and start or resume the others.

    `arguments` are those of `nsabench all`. `show` receives each printed line with its version.
    """
    _keep_arguments(list(arguments), folder)
    measured = []
    for triton in tritons:
        own, code = folder / f"triton-{triton.version}", None
        if not ((own / "records.parquet").is_file() and (own / MANIFEST).is_file()):
            place = Place(triton.version, triton.variables)
            [code] = run_at([place], [[*arguments, "--resume", str(own)]], show)
        measured.append(MeasuredVersion(triton, own, code))
    return measured


def _keep_arguments(arguments: list[str], folder: Path) -> None:
    file = folder / ARGUMENTS
    if file.is_file():
        try:
            same = json.loads(file.read_bytes()) == arguments
        except ValueError:
            same = False
        if not same:
            raise UsageError(
                f"{folder} holds runs that were made with other arguments",
                f"give --out another folder; {file} has the arguments of those runs.",
            )
        return
    refuse_filled(folder)
    with writing(folder, "give --out a writable folder"):
        folder.mkdir(parents=True, exist_ok=True)
        whole(file, json.dumps(arguments).encode() + b"\n")

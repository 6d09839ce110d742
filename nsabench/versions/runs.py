"""One run for each Triton, below one folder, each measured by an `nsabench all` of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from nsabench.errors import EnvironmentRefused, UsageError
from nsabench.evidence.manifest import MANIFEST
from nsabench.files import whole
from nsabench.output.compare import Comparison, compare, read
from nsabench.running.folder import RunFolder
from nsabench.signing import secrecy
from nsabench.versions.tritons import Triton

ARGUMENTS = "arguments.json"  # what all runs of a folder were started with
COMPLETE = (0, 1)  # exit codes of a run that is complete

Show = Callable[[str, str], None]


@dataclass(frozen=True)
class Measured:
    """A Triton and its run. exit_code: of `nsabench all`; None if the run was there before."""

    triton: Triton
    folder: Path
    exit_code: int | None

    @property
    def finished(self) -> bool:
        return self.exit_code in (None, *COMPLETE)


def measure(
    arguments: Sequence[str], folder: Path, tritons: Sequence[Triton], show: Show
) -> list[Measured]:
    """Measure under one Triton after another; one that fails does not end the others.

    arguments: of `nsabench all`. A finished run is kept, and an unfinished one is resumed. show:
    receives the version and each line that is printed. Raises `UsageError` if the folder holds
    runs with other arguments.
    """
    _keep_arguments(list(arguments), folder)
    return [_measure_one(arguments, folder, triton, show) for triton in tritons]


def compare_finished(measured: Sequence[Measured]) -> Comparison | None:
    """Compare the finished runs with the first of them, in what they have in common.

    None if fewer than two are finished. An implementation may not exist under every Triton.
    """
    folders = [one.folder for one in measured if one.finished]
    return compare(read(folders), intersection=True) if len(folders) > 1 else None


def environment(triton: Triton) -> dict[str, str]:
    variables = {**os.environ, **secrecy.variables()}
    if triton.folder is not None:
        path = [str(triton.folder), variables.get("PYTHONPATH", "")]
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    return variables


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
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty", "give --out another folder.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        whole(file, json.dumps(arguments).encode() + b"\n")
    except OSError as error:
        raise EnvironmentRefused(
            f"{folder} cannot be written: {error.strerror}", "give --out a writable folder."
        ) from None


def _measure_one(arguments: Sequence[str], folder: Path, triton: Triton, show: Show) -> Measured:
    own = folder / f"triton-{triton.version}"
    if RunFolder(own).records.is_file() and (own / MANIFEST).is_file():
        return Measured(triton, own, None)
    words = [*arguments, "--resume", str(own)]
    process = subprocess.Popen(
        [sys.executable, "-m", "nsabench", "all", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(triton),
        start_new_session=True,  # so that an interrupt reaches the run once, from here
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            show(triton.version, line.rstrip("\n"))
        code = process.wait()
    except BaseException:
        process.send_signal(signal.SIGINT)
        process.wait()
        raise
    return Measured(triton, own, code)

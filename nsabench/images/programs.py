"""Running the tools that resolve, fetch and list packages."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

from nsabench.errors import EnvironmentRefused, NsabenchError


def find(tool: str, package: str, module: str) -> list[str]:
    """What starts the tool: beside this Python, as a module that it imports, or on PATH.

    Scripts stay behind where packages are borrowed from another environment (a `.pth`, `--target`),
    and there the module is all that there is. Raises `EnvironmentRefused` when it is nowhere.
    """
    beside = Path(sys.executable).parent / tool
    if beside.is_file():
        return [str(beside)]
    if importlib.util.find_spec(module) is not None:
        return [sys.executable, "-m", module]
    program = shutil.which(tool)
    if program is None:
        raise EnvironmentRefused(
            f"{tool} is not installed", f"pip install 'nsabench[images]' (or {package})."
        )
    return [program]


def run(
    command: Sequence[str | Path], purpose: str, timeout_s: float, without: Collection[str] = ()
) -> str:
    """What it prints. without: variables that it is not to see. Raises `NsabenchError` with its
    last line when it fails."""
    environment = {name: value for name, value in os.environ.items() if name not in without}
    try:
        done = subprocess.run(
            list(map(str, command)),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        raise NsabenchError(
            f"{purpose} took longer than {timeout_s:g} s", "look at the network, and try again."
        ) from None
    if done.returncode != 0:
        messages = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise NsabenchError(
            f"{purpose} failed: {' '.join(messages[-3:])[:500] or 'no reason was given'}",
            "look at the network and the versions in combos.yaml.",
        )
    return done.stdout

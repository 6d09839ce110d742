"""Run uv and pip, which resolve, download and install packages."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from nsabench.errors import EnvironmentRefused

UV = (sys.executable, "-P", "-m", "uv", "pip")
PIP = (sys.executable, "-P", "-m", "pip", "--disable-pip-version-check")


def has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def run(
    command: Sequence[str | Path],
    purpose: str,
    timeout_s: float,
    remedy: str = "check the network and the versions in combos.yaml.",
) -> None:
    """Run a command. If it fails, raise `EnvironmentRefused` with the last lines of its stderr."""
    if "uv" in command and not has("uv"):
        raise EnvironmentRefused("uv is not installed", "pip install 'nsabench[images]' (or uv).")
    try:
        done = subprocess.run(
            list(map(str, command)), capture_output=True, text=True, timeout=timeout_s
        )
    except subprocess.TimeoutExpired:
        raise EnvironmentRefused(
            f"{purpose} took longer than {timeout_s:g} s", "check the network, and try again."
        ) from None
    if done.returncode != 0:
        messages = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise EnvironmentRefused(
            f"{purpose} failed: {' '.join(messages[-3:])[:500] or 'no reason was given'}", remedy
        )

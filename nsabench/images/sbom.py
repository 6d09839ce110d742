"""The CycloneDX bill of materials of an image: nsabench, and its locks, which are all of Python.

The base's Debian packages are not in it; the base is named by its digest.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from nsabench.images import programs
from nsabench.images.combos import Checkout

LIMIT_S = 120.0


def write(checkout: Checkout, locks: Sequence[Path], target: Path) -> Path:
    """Raises `NsabenchError` when cyclonedx-py is not installed, or what it made is not valid."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as together:
        together.writelines(lock.read_text() for lock in locks)
        together.flush()
        command: list[str | Path] = [
            *programs.find("cyclonedx-py", "cyclonedx-bom", "cyclonedx_py"),
            "requirements",
        ]
        command += ["--output-reproducible", "--validate", "--output-format", "JSON"]
        command += ["--pyproject", checkout.root / "pyproject.toml"]
        command += ["--output-file", target, together.name]
        # It would write that time into what is to be the same of every commit.
        purpose = f"the bill of materials of {locks[0].stem}"
        programs.run(command, purpose, LIMIT_S, without=["SOURCE_DATE_EPOCH"])
    return target

"""The CycloneDX bill of materials of a combo: its lock, which is all that is installed."""

from __future__ import annotations

from pathlib import Path

from nsabench.images import programs

LIMIT_S = 120.0


def write(lock: Path, target: Path) -> Path:
    """Raises `NsabenchError` when cyclonedx-py is not installed or fails."""
    programs.run(
        [
            programs.find("cyclonedx-py", "cyclonedx-bom"),
            "requirements",
            "--output-reproducible",
            "--output-format",
            "JSON",
            "--output-file",
            target,
            lock,
        ],
        f"the bill of materials of {lock.stem}",
        LIMIT_S,
    )
    return target

"""The commit that a checkout is at."""

from __future__ import annotations

import subprocess
from pathlib import Path


def revision(root: Path) -> str:
    """The commit, marked when the checkout differs from it."""
    try:
        done = subprocess.run(
            [
                "git",
                "-C",
                str(root),
                "describe",
                "--always",
                "--abbrev=40",
                "--exclude=*",
                "--dirty",
            ],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.strip()

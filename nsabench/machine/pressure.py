"""How long programs waited for a core, as the kernel counts it (PSI, Linux 4.20)."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

BUSY = 0.1  # of the time somebody waited: what was timed meanwhile may have waited, too


def waited_s(root: Path = Path("/")) -> float | None:
    """Seconds since the start of the machine in which some program was ready and had no core; None
    where the kernel does not count them."""
    try:
        lines = (root / "proc/pressure/cpu").read_text().splitlines()
        some = next(line for line in lines if line.startswith("some "))
        return int(some.rpartition("total=")[2]) * 1e-6
    except (OSError, StopIteration, ValueError):
        return None


def watch() -> Callable[[], bool]:
    """Begin to look; what is returned says whether the machine was busy since, as far as it can be
    known."""
    begun, before = time.monotonic(), waited_s()

    def was_busy() -> bool:
        now = waited_s()
        if before is None or now is None:
            return False
        return now - before > BUSY * (time.monotonic() - begun)

    return was_busy

"""Reads the total memory of a device, so that a case that cannot fit is refused early."""

from __future__ import annotations

import os
import subprocess

from nsabench.machine.environment.cgroup import read_cgroup


def memory_of(device: str) -> int | None:
    """Return the bytes of the largest GPU, or those that this host may use; None: unknown."""
    if device == "cpu":
        host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        allowed = read_cgroup().memory_bytes
        return min(host, allowed) if allowed else host
    try:
        listing = subprocess.run(
            ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"],
            capture_output=True,
            timeout=30,
            check=True,
            text=True,
        ).stdout
        return max(int(line) for line in listing.split()) << 20
    except (OSError, subprocess.SubprocessError, ValueError):
        return None

"""Reads the size of the CPU's caches from Linux."""

from __future__ import annotations

import re
from contextlib import suppress
from functools import cache
from pathlib import Path

COMMON_BYTES = 32 << 20  # if Linux does not say
# A virtual machine may see less than there is, and some caches are too large to flush every time.
LEAST_BYTES, MOST_BYTES = 16 << 20, 128 << 20
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
SHARED_LEVEL = 3
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@cache
def last_level_bytes(folder: Path = CACHES) -> int:
    """Return the size of the largest shared cache in bytes, within bounds.

    `COMMON_BYTES` if Linux names no cache of level 3, as on many ARM hosts.
    """
    sizes = [0]
    with suppress(OSError):
        for path in folder.glob("index*"):
            told = re.fullmatch(r"(\d+)([KMG]?)", (path / "size").read_text().strip())
            if told is not None and int((path / "level").read_text()) >= SHARED_LEVEL:
                sizes.append(int(told[1]) * _UNITS[told[2]])
    return min(max(*sizes, LEAST_BYTES), MOST_BYTES) if any(sizes) else COMMON_BYTES

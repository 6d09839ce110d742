"""Read the size of the CPU's last-level cache."""

from __future__ import annotations

import re
from contextlib import suppress
from functools import cache
from pathlib import Path

COMMON_BYTES = 32 << 20  # assumed if Linux reports no size, as on many ARM hosts
# A virtual machine may report too small a cache, and to flush a huge cache would take too long.
LEAST_BYTES, MOST_BYTES = 16 << 20, 128 << 20
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
SHARED_LEVEL = 3
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@cache
def last_level_bytes(folder: Path = CACHES) -> int:
    """Return the last-level cache's bytes, from LEAST_BYTES to MOST_BYTES."""
    sizes = [0]
    with suppress(OSError):
        for path in folder.glob("index*"):
            match = re.fullmatch(r"(\d+)([KMG]?)", (path / "size").read_text().strip())
            if match is not None and int((path / "level").read_text()) >= SHARED_LEVEL:
                sizes.append(int(match[1]) * _UNITS[match[2]])
    return min(max(*sizes, LEAST_BYTES), MOST_BYTES) if any(sizes) else COMMON_BYTES

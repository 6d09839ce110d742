"""How much the caches of a CPU hold, as Linux tells it."""

from __future__ import annotations

import re
from contextlib import suppress
from functools import cache
from pathlib import Path

COMMON_BYTES = 32 << 20  # of common hosts: of one that does not tell
# A virtual machine may be told less than there is, and some hosts have more than is worth reading
# before each sample.
LEAST_BYTES, MOST_BYTES = 16 << 20, 128 << 20
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
SHARED_LEVEL = 3  # that several cores share; a machine that tells of none may have one all the same
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@cache
def last_level_bytes(folder: Path = CACHES) -> int:
    """The size of the largest cache that a core reads through (byte), within bounds.

    `COMMON_BYTES` where nothing is told of the third level or one beyond, as on a Mac and many ARM
    hosts.
    """
    sizes = [0]
    with suppress(OSError):
        for path in folder.glob("index*"):
            told = re.fullmatch(r"(\d+)([KMG]?)", (path / "size").read_text().strip())
            if told is not None and int((path / "level").read_text()) >= SHARED_LEVEL:
                sizes.append(int(told[1]) * _UNITS[told[2]])
    return min(max(*sizes, LEAST_BYTES), MOST_BYTES) if any(sizes) else COMMON_BYTES

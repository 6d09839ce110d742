"""How much the caches of a CPU hold, as Linux tells it."""

from __future__ import annotations

import re
from contextlib import suppress
from functools import cache
from pathlib import Path

# Of a machine that does not say: that of common hosts.
COMMON_BYTES = 32 << 20
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@cache
def last_level_bytes(folder: Path = CACHES) -> int:
    """The size of the largest cache that a core reads through (byte).

    A virtual machine may be told less than there is, so it is never taken to be under a quarter of
    `COMMON_BYTES`. Where nothing is told, as on a Mac and many ARM hosts, it is `COMMON_BYTES`.
    """
    sizes = []
    with suppress(OSError):
        for path in folder.glob("index*/size"):
            told = re.fullmatch(r"(\d+)([KMG]?)", path.read_text().strip())
            if told is not None:
                sizes.append(int(told[1]) * _UNITS[told[2]])
    return max(*sizes, COMMON_BYTES // 4) if sizes else COMMON_BYTES

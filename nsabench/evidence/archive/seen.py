"""Remember which archived runs were verified on this machine, so that tables are read once.

A key is made from the manifest of a run, its archive, and the store's stamps of its tables.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress

from nsabench import limits
from nsabench.files import user_cache, whole
from nsabench.reading import OutOfBounds, read

MOST = 100_000  # runs that are remembered
MOST_BYTES = 16 * limits.MIB


class Seen:
    """Keys of verified runs, kept in the user's cache if that is writable."""

    def __init__(self) -> None:
        self._path = user_cache() / "archived-runs.txt"
        self._keys: dict[str, None] = {}
        self._new = False
        with suppress(OSError, OutOfBounds, UnicodeDecodeError):
            self._keys = dict.fromkeys(read(self._path, MOST_BYTES).decode().split())

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    def add(self, key: str) -> None:
        self._keys[key] = None
        self._new = True

    def keep(self) -> None:
        if not self._new:
            return
        with suppress(OSError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            whole(self._path, "\n".join(list(self._keys)[-MOST:]).encode())


def key_of(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()

"""Remember which tables of archives were verified on this machine, so that each is read once.

A table is remembered by its manifest, its address and what the store says of its content (in a
folder inode, size and times). Signatures and trust are checked every time.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress

from pydantic import BaseModel

from nsabench import limits
from nsabench.files import user_cache, whole
from nsabench.reading import OutOfBounds, parse_json, read

MOST = 100_000  # tables that are remembered
MOST_BYTES = 16 * limits.MIB


class _Kept(BaseModel):
    keys: list[str] = []


class Seen:
    """The tables that were verified before. If they cannot be kept, they are verified again."""

    def __init__(self) -> None:
        self._path = user_cache() / "archived-tables.json"
        self._keys: dict[str, None] = {}
        self._new = False
        with suppress(OSError, OutOfBounds):
            kept = parse_json(read(self._path, MOST_BYTES), MOST_BYTES, _Kept)
            self._keys = dict.fromkeys(kept.keys)

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    def add(self, key: str) -> None:
        self._keys[key] = None
        self._new = True

    def keep(self) -> None:
        if self._new:
            content = _Kept(keys=list(self._keys)[-MOST:]).model_dump_json().encode()
            with suppress(OSError):
                self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                whole(self._path, content)


def key_of(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()

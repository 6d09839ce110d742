"""Remember which archived runs were verified on this machine, so that each is read once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

from nsabench import limits
from nsabench.errors import VerificationFailed
from nsabench.evidence.manifest.statement import Statement
from nsabench.files import user_cache, whole
from nsabench.model.version import __version__
from nsabench.reading import OutOfBounds, read

MOST = 100_000  # runs that are remembered
MOST_BYTES = 512 * limits.MIB


class Verified(NamedTuple):
    """A verified run. columns: by table, those that this version does not know (`ArchivedRun`)."""

    statement: Statement
    columns: Mapping[str, str]


class Seen:
    """Verified runs by key, kept in the user's cache if that is writable."""

    def __init__(self) -> None:
        self._path = user_cache() / "archived-runs.jsonl"
        self._lines: dict[str, str] = {}
        self._new = False
        with suppress(OSError, OutOfBounds, UnicodeDecodeError):
            for line in read(self._path, MOST_BYTES).decode().splitlines():
                self._lines[line.partition(" ")[0]] = line

    def __contains__(self, key: str) -> bool:
        return key in self._lines

    def get(self, key: str) -> Verified | None:
        with suppress(ValueError, VerificationFailed):  # somebody changed the file
            statement, columns = json.loads(self._lines.get(key, "").partition(" ")[2])
            return Verified(Statement.parse(statement.encode()), columns)
        return None

    def add(self, key: str, verified: Verified) -> None:
        content = [verified.statement.to_json().decode(), verified.columns]
        self._lines[key] = f"{key} {json.dumps(content)}"
        self._new = True

    def keep(self) -> None:
        if not self._new:
            return
        with suppress(OSError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            whole(self._path, "\n".join(list(self._lines.values())[-MOST:]).encode())


def key_of(location: str, stamps: Mapping[str, str]) -> str:
    """Return the key of a run from the names and stamps of its objects."""
    parts = [__version__, location, *(f"{name} {stamp}" for name, stamp in sorted(stamps.items()))]
    return hashlib.sha256("\n".join(parts).encode(errors="surrogateescape")).hexdigest()

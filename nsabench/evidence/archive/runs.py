"""Describe the runs of an archive, and remember which were verified on this machine."""

import hashlib
from collections.abc import Mapping
from contextlib import suppress

from pydantic import Field

from nsabench import limits
from nsabench.errors import VerificationFailed
from nsabench.evidence.manifest.statement import Statement, Trust
from nsabench.files import user_cache, whole
from nsabench.model.case import Frozen
from nsabench.model.version import __version__
from nsabench.reading import OutOfBounds, read

MOST = 100_000  # runs that are remembered
MOST_BYTES = 512 * limits.MIB


class ArchivedRun(Frozen):
    prefix: str  # the names of its objects begin with this; ends in "/"
    statement: Statement
    trust: Trust
    # For each table, the Arrow types of the columns that this version of nsabench does not know.
    unknown: dict[str, dict[str, str]] = Field(default={})

    @property
    def run_id(self) -> str:
        return self.statement.predicate.run_id

    def digest(self, table: str) -> str:
        try:
            return self.statement.digests[f"{table}.parquet"]
        except KeyError:
            raise VerificationFailed(f"its manifest names no {table}.parquet") from None

    def object(self, table: str) -> str:
        return self.prefix + object_name(table, self.digest(table))


def object_name(table: str, digest: str) -> str:
    return f"{table}-{digest[:16]}.parquet"


class VerifiedRuns:
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

    def get(self, key: str) -> ArchivedRun | None:
        with suppress(ValueError):  # the file was edited
            return ArchivedRun.model_validate_json(self._lines.get(key, "").partition(" ")[2])
        return None

    def add(self, key: str, run: ArchivedRun) -> None:
        self._lines[key] = f"{key} {run.model_dump_json()}"
        self._new = True

    def keep(self) -> None:
        if not self._new:
            return
        with suppress(OSError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            whole(self._path, "\n".join(list(self._lines.values())[-MOST:]).encode())


def key_of(location: str, stamps: Mapping[str, str]) -> str:
    parts = [__version__, location, *(f"{name} {stamp}" for name, stamp in sorted(stamps.items()))]
    return hashlib.sha256("\n".join(parts).encode(errors="surrogateescape")).hexdigest()

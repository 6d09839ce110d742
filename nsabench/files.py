"""Write files atomically, and explain a disk that is full or not writable."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nsabench.errors import EnvironmentRefused, UsageError

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
REFUSED = _FULL | {errno.EROFS, errno.EACCES}


def user_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "nsabench"


def refuse_filled(folder: Path, remedy: str = "give --out another folder.") -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is not empty", remedy)


@contextmanager
def writing(where: Path | None = None, remedy: str = "try again") -> Iterator[None]:
    """Turn an `OSError` with an errno in `REFUSED` into `EnvironmentRefused`, naming `where`."""
    try:
        yield
    except OSError as error:
        if error.errno not in REFUSED:
            raise
        mend = "room" if error.errno in _FULL else "it writable"
        raise EnvironmentRefused(
            f"{where or error.filename or 'a file'} cannot be written: {error.strerror}",
            f"make {mend}, then {remedy}.",
        ) from error


def unfinished(path: Path) -> Path:
    """Return the path of the temporary file that `replacing` leaves if its process is killed."""
    return path.with_suffix(".tmp")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield an empty file that replaces `path` at the end. A crash leaves the old or new file."""
    temporary = unfinished(path)
    fresh(temporary)
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def fresh(path: Path) -> None:
    """Replace `path` by an empty file without following a link."""
    path.unlink(missing_ok=True)
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))


def whole(path: Path, data: bytes) -> None:
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def write_text(path: Path, text: str) -> Path:
    """Write a file. Raises `OSError` for an errno in `REFUSED`, `UsageError` for any other."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        whole(path, text.encode())
    except OSError as error:
        if error.errno in REFUSED:
            error.filename = str(path)  # an error of `write` does not name the file
            raise
        raise UsageError(
            f"{path} cannot be written: {error.strerror}", "name a path that can be written."
        ) from None
    return path

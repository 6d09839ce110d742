"""Files that are whole or not there; a disk that is full or may not be written, with a remedy."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nsabench.errors import EnvironmentRefused

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
REFUSED = _FULL | {errno.EROFS, errno.EACCES}


def user_cache() -> Path:
    """`$XDG_CACHE_HOME/nsabench`, by default below `~/.cache`; it may not be there."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "nsabench"


@contextmanager
def writing(where: Path | None = None, remedy: str = "try again") -> Iterator[None]:
    """Raises `EnvironmentRefused` for an `OSError` in `REFUSED`; any other passes.

    where: what is said not to be writable; None: the file that the error names.
    """
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
    """Where `replacing` fills what is to be `path`; one that was killed leaves it there."""
    return path.with_suffix(".tmp")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file to fill, which then takes the place of `path`; it is gone if that fails.

    Whoever looks, also after a crash, sees all of the new file or what was before.
    """
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
    """An empty file in place of what lies there: a link that somebody put there is not followed."""
    path.unlink(missing_ok=True)
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))


def whole(path: Path, data: bytes) -> None:
    """Write a file as `replacing` does."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)

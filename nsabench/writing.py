"""A disk that is full or may not be written is the machine's fault, with a remedy."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nsabench.errors import EnvironmentRefused

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
REFUSED = _FULL | {errno.EROFS, errno.EACCES}


@contextmanager
def writing(where: Path | None = None, then: str = "try again") -> Iterator[None]:
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
            f"make {mend}, then {then}.",
        ) from error

"""The bytes of a file, no more of them than its kind may have."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path


class OutOfBounds(ValueError):
    """A file has more in it than one of its kind may have. `str()` goes on after its name."""


@contextmanager
def opened(path: Path) -> Iterator[BufferedReader]:
    """A regular file, open for reading: a pipe or a device may never end, nor begin.

    Raises `OSError` when it cannot be opened, and `OutOfBounds` when it is something else.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OutOfBounds("is a pipe or a device and not a file")
        yield file


def read(path: Path, most: int) -> bytes:
    """The whole file. Raises as `opened`, and `OutOfBounds` when it has more than `most` bytes."""
    with opened(path) as file:
        return whole(file.read(most + 1), most)


def whole(data: bytes, most: int) -> bytes:
    """The same bytes. Raises `OutOfBounds` when they are more than `most`."""
    if len(data) > most:
        raise OutOfBounds(f"has more than {size(most)}")
    return data


def tail(path: Path, most: int) -> str:
    """The end of a text file, whatever its encoding. Raises as `opened`."""
    with opened(path) as file:
        file.seek(max(os.fstat(file.fileno()).st_size - most, 0))
        return file.read(most).decode(errors="replace")


def size(count: int) -> str:
    for unit, of in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= of:
            return f"{count / of:g} {unit}"
    return f"{count} bytes"

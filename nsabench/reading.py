"""Read files from others, within limits of size and memory."""

import os
import resource
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from nsabench import limits

M = TypeVar("M", bound=BaseModel)


class OutOfBounds(ValueError):
    """A file is too large or malformed. `str()` follows the file's name in a sentence."""


def limit_memory() -> None:
    """Limit the memory of this process and its children: a small file may unpack to huge data."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    least = limits.MEMORY if hard == resource.RLIM_INFINITY else min(limits.MEMORY, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (least, hard))


@contextmanager
def opened(path: Path, most: int | None = None, *, flags: int = 0) -> Iterator[BufferedReader]:
    """Open a regular file of at most `most` bytes. Raises `OutOfBounds` for any other file.

    A pipe or a device might never end. `flags` are more flags for `os.open`, which may raise.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise OutOfBounds("is a pipe or a device and not a file")
        if most is not None and found.st_size > most:
            raise OutOfBounds(f"has more than {size(most)}")
        yield file


def read(path: Path, most: int) -> bytes:
    with opened(path, most) as file:
        # Python reserves memory for all bytes asked for, so ask for no more than the file has.
        data = file.read(min(os.fstat(file.fileno()).st_size, most) + 1)
    require_size(data, most)  # the file may have grown meanwhile
    return data


def tail(path: Path, most: int) -> str:
    """Read the end of a text file, and replace bytes that are not UTF-8."""
    with opened(path) as file:
        file.seek(max(os.fstat(file.fileno()).st_size - most, 0))
        return file.read(most).decode(errors="replace")


def require_size(data: bytes, most: int) -> None:
    if len(data) > most:
        raise OutOfBounds(f"has more than {size(most)}")


def parse_json(data: bytes, most: int, model: type[M]) -> M:
    """Parse JSON without NaN and infinity as a `model`. Raises `OutOfBounds` if this fails."""
    require_size(data, most)
    try:
        content = from_json(data, allow_inf_nan=False)  # `from_json` limits the depth
    except ValueError as error:
        raise OutOfBounds(f"is not JSON: {error}") from None
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise OutOfBounds(f"is not as it should be: {first_fault(error)}") from None


def first_fault(error: ValidationError) -> str:
    """Return field and message of the first fault, or the number of faults if there are many."""
    if error.error_count() > limits.FAULTS:
        return f"it has {error.error_count()} faults"
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(map(str, first["loc"]))
    return f"{where}: {first['msg']}" if where else str(first["msg"])


def size(count: int) -> str:
    for unit, factor in (("GiB", limits.GIB), ("MiB", limits.MIB), ("KiB", limits.KIB)):
        if count >= factor:
            return f"{count / factor:g} {unit}"
    return f"{count} bytes"

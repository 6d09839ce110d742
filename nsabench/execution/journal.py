"""The journal of a run: one JSON line a finished case, fsynced before the next case starts."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from pydantic import ValidationError

from nsabench import bounds
from nsabench.bounds import limits
from nsabench.errors import UsageError, VerificationFailed
from nsabench.execution import chain
from nsabench.execution.chain import Origin, Sealer
from nsabench.model.journal import LINE, Contents, Line
from nsabench.model.vocabulary import PassName

_NO_FILE = {errno.ELOOP: "a link", errno.ENXIO: "a pipe or a device"}


class Journal:
    """Append-only. Opening one for append removes a torn last line, and only that.

    contents: what it holds, up to the line that was appended last. origin: who vouched for what it
    held when it was opened; None: nobody.
    """

    def __init__(self, path: Path) -> None:
        """Raises `UsageError` when a line is broken or another process writes it, and
        `VerificationFailed` when a line is not what was measured."""
        self.path = path
        self._file = _for_append(path)
        self._sealer: Sealer | None = None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise UsageError(
                f"{path.parent} is being written by another nsabench",
                "wait for it, or give --out another folder.",
            ) from None
        try:
            self.contents = Contents()
            self.origin, whole, self._last = _examine(path, self.contents.add)
        except (UsageError, VerificationFailed):
            self._file.close()
            raise
        self._file.truncate(whole)

    def done(self, name: PassName) -> set[str]:
        """The ids of the cases that a pass has journaled."""
        return {entry.case_id for entry in self.contents.of(name)}

    @property
    def end(self) -> str:
        """The link of the last line."""
        return self._last

    @property
    def is_sealed(self) -> bool:
        """Whether a sitting of this process has begun."""
        return self._sealer is not None

    def begin(self, sealer: Sealer) -> None:
        """Begin a sitting: `sealer` seals what is appended from here on."""
        self._sealer = sealer
        self.append(sealer.sitting(self._last))

    def append(self, line: Line) -> None:
        """Raises `OSError` when the disk is full; the torn line is forgiven on resume."""
        if self._sealer is None:
            content = line.model_dump_json(exclude={"previous", "seal"}).encode()
        else:
            content = self._sealer.seal(line, self._last)
        self._file.write(content + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self._last = chain.link(content)
        self.contents.add(line)

    def close(self) -> None:
        self._file.close()


def _for_append(path: Path) -> BinaryIO:
    """Raises `UsageError` when it is no file: what a link leads to is none of the run's to cut."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    remedy = "give the folder that nsabench made."
    try:
        file = os.fdopen(os.open(path, flags, 0o666), "ab")
    except OSError as error:
        if error.errno not in _NO_FILE:
            raise
        raise UsageError(f"{path} is {_NO_FILE[error.errno]} and not a file", remedy) from None
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise UsageError(f"{path} is a pipe or a device and not a file", remedy)
    return file


def read(path: Path) -> Contents:
    """All whole lines. Raises `UsageError` when a line other than a torn last one is broken."""
    contents = Contents()
    for _, line in lines(path):
        contents.add(line)
    return contents


def examine(path: Path) -> tuple[Contents, Origin | None]:
    """All whole lines, and who vouches for them.

    Raises `UsageError` as `read` does, and `VerificationFailed` when a line is not what was
    measured.
    """
    contents = Contents()
    return contents, origin(path, contents.add)


def origin(path: Path, take: Callable[[Line], None]) -> Origin | None:
    """Who vouches for the whole lines. Each is handed to `take` once it follows the one before, for
    whoever need not hold them all. Raises as `examine` does, and what `take` raises."""
    return _examine(path, take)[0]


def _examine(path: Path, take: Callable[[Line], None]) -> tuple[Origin | None, int, str]:
    """Also the length of the whole lines, and what the next line names as its previous one."""
    whole, last = 0, b""

    def pairs() -> Iterator[tuple[bytes, Line]]:
        nonlocal whole, last
        for content, line in lines(path):
            yield content, line
            take(line)
            whole, last = whole + len(content) + 1, content

    vouched = chain.origin(pairs())
    return vouched, whole, chain.link(last) if last else ""


def lines(path: Path) -> Iterator[tuple[bytes, Line]]:
    """Each whole line, as it stands there without its end, and what it says."""
    try:
        with bounds.opened(path) as file:
            yield from _lines_of(file, path)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror}", "give the folder that nsabench made."
        ) from None
    except bounds.OutOfBounds as error:
        raise UsageError(f"{path} {error}", "give the folder that nsabench made.") from None


def _lines_of(file: BinaryIO, path: Path) -> Iterator[tuple[bytes, Line]]:
    number = end = 0
    # Only a newline ends a line: a stray \r must not pass for a torn last one.
    while (text := file.readline(limits.JOURNAL_LINE + 1)).endswith(b"\n"):
        number += 1
        end += len(text)
        if end > limits.JOURNAL:
            raise bounds.OutOfBounds(f"has more than {limits.JOURNAL} bytes")
        try:
            yield text[:-1], LINE.validate_json(text)
        except ValidationError:
            raise UsageError(
                f"{path}:{number}: not a line of a run's journal",
                "the file was altered or the disk is bad: start a new run.",
            ) from None
    if len(text) > limits.JOURNAL_LINE:
        raise bounds.OutOfBounds(f"has a line of more than {limits.JOURNAL_LINE} bytes")

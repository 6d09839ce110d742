"""The journal of a run: one JSON line a finished case, fsynced before the next case starts."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from pydantic import ValidationError

from nsabench import limits, reading
from nsabench.errors import UsageError, VerificationFailed
from nsabench.execution import chain
from nsabench.execution.chain import Origin, Sealer
from nsabench.model.journal import LINE, Begun, Contents, Line
from nsabench.model.vocabulary import PassName

_NO_FILE = {errno.ELOOP: "a link", errno.ENXIO: "a pipe or a device"}


class Journal:
    """Append-only. Opening one for append removes a torn last line, and only that.

    contents: what it holds, up to the line that was appended last. origin: who vouched for what it
    held when it was opened; None: nobody.
    """

    def __init__(self, path: Path) -> None:
        """Raises `UsageError` when a line is broken or another process writes it, and
        `VerificationFailed` when a line is not what was measured.
        """
        self.path = path
        self._begun: Begun | None = None
        self._begun_bytes = 0
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
            self.origin, self._whole, self._last = _examine(path, self.contents.add)
        except (UsageError, VerificationFailed):
            self._file.close()
            raise
        self._file.truncate(self._whole)

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
        """Raises `OSError` when the disk is full; the torn line is forgiven on resume. Raises
        `VerificationFailed` when something else wrote to the file."""
        content = self._replace(line)
        os.fsync(self._file.fileno())
        self._whole += len(content) + 1
        self._begun, self._begun_bytes = None, 0
        self._last = chain.link(content)
        self.contents.add(line)

    def begin_attempt(self, begun: Begun) -> None:
        """What is measured from here on: should this process be killed, whoever goes on reads it.
        It gives way to the next line. Raises as `append` does."""
        self._begun_bytes = len(self._replace(begun)) + 1
        self._begun = begun
        os.fsync(self._file.fileno())

    def busy_with(self, phase: str, implementation: str) -> None:
        """The worker says whom it calls from here on. Raises as `append` does."""
        if self._begun is None:
            return
        busy = self._begun.model_copy(update={"phase": phase, "implementation": implementation})
        # Not synced, since that takes milliseconds: what was written outlives a killed process.
        self._begun_bytes = len(self._replace(busy)) + 1
        self._begun = busy

    def _replace(self, line: Line) -> bytes:
        """Write a line behind those that stay, in place of what is begun."""
        if os.fstat(self._file.fileno()).st_size != self._whole + self._begun_bytes:
            self._refuse_foreign()
        if self._sealer is None:
            content = line.model_dump_json(exclude={"previous", "seal"}).encode()
        else:
            content = self._sealer.seal(line, self._last)
        if self._begun_bytes:
            self._file.truncate(self._whole)
            self._begun_bytes = 0
        self._file.write(content + b"\n")
        self._file.flush()
        return content

    def _refuse_foreign(self) -> None:
        """Say what was done to the file by something else, and where. It is left as it is."""
        begun, self._begun = self._begun, None
        self._begun_bytes = 0
        during = ""
        if begun is not None:
            names = begun.implementation or ", ".join(begun.implementations)
            during = f" while {names} was measured ({begun.phase or 'start'})"
        try:
            _examine(self.path, lambda line: None)
        except (UsageError, VerificationFailed) as error:
            error.args = (f"something else wrote to {self.path}{during}: {error}",)
            raise
        raise VerificationFailed(
            f"something else wrote to {self.path}{during}: its length is not what was written",
            f"find out what it was, then go on with --resume {self.path.parent}.",
        )

    def close(self) -> None:
        """A process that ends like this was not killed: nothing is begun any more."""
        if self._begun_bytes:
            with suppress(OSError):
                self._file.truncate(self._whole)
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

    try:
        vouched = chain.origin(pairs())
    except VerificationFailed as error:
        error.remedy = "find out what else wrote there, and start a new run."
        raise
    return vouched, whole, chain.link(last) if last else ""


def lines(
    path: Path, start: int = 0, stop: int | None = None, above: int = 0
) -> Iterator[tuple[bytes, Line]]:
    """Each whole line, as it stands there without its end, and what it says.

    start, stop: the bytes where those lines begin and end that are asked for, None: of the
    file; above: lines that stand above them.
    """
    with _reading(path) as file:
        file.seek(start)
        yield from _lines_of(file, path, start, stop, above)


def contents(path: Path) -> Iterator[bytes]:
    """Each line with its end, as it stands there, whatever it says. Raises as `read` does."""
    with _reading(path) as file:
        end = 0
        while text := file.readline(limits.JOURNAL_LINE + 1):
            if len(text) > limits.JOURNAL_LINE:
                raise _too_long()
            yield text
            end += len(text)
            if end > limits.JOURNAL:
                raise reading.OutOfBounds(f"has more than {limits.JOURNAL} bytes")


@contextmanager
def _reading(path: Path) -> Iterator[BinaryIO]:
    try:
        with reading.opened(path) as file:
            yield file
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror}", "give the folder that nsabench made."
        ) from None
    except reading.OutOfBounds as error:
        raise UsageError(f"{path} {error}", "give the folder that nsabench made.") from None


def _lines_of(
    file: BinaryIO, path: Path, start: int, stop: int | None, above: int
) -> Iterator[tuple[bytes, Line]]:
    number, end = above, start
    # What is begun gives way to the next line, maybe while it is read here: it is held back until
    # what follows it is known to follow it.
    begun: tuple[bytes, Line] | None = None
    while stop is None or end < stop:
        text = file.readline(limits.JOURNAL_LINE + 1)
        if end + len(text) > limits.JOURNAL:
            raise reading.OutOfBounds(f"has more than {limits.JOURNAL} bytes")
        line = _parsed(text)
        if line is None:
            before = begun[0] + b"\n" if begun else b""
            if _is_replaced(file, before + text, end - len(before)):
                end, number, begun = end - len(before), number - bool(begun), None
                continue
            if len(text) > limits.JOURNAL_LINE:
                raise _too_long()
            if not text.endswith(b"\n"):
                break
            raise UsageError(
                f"{path}:{number + 1}: not a line of a run's journal",
                "the file was altered or the disk is bad: start a new run.",
            )
        if begun:
            yield begun
        number += 1
        end += len(text)
        begun = (text[:-1], line) if isinstance(line, Begun) else None
        if not begun:
            yield text[:-1], line
    if begun:
        yield begun


def _too_long() -> reading.OutOfBounds:
    return reading.OutOfBounds(f"has a line of more than {limits.JOURNAL_LINE} bytes")


def _parsed(text: bytes) -> Line | None:
    """None: it is no whole line. Only a newline ends one: a stray \r must not pass for its end."""
    if not text.endswith(b"\n"):
        return None
    try:
        return LINE.validate_json(text)
    except ValidationError:
        return None


def _is_replaced(file: BinaryIO, read_before: bytes, start: int) -> bool:
    """Whether another process wrote there since it was read. The file is then where that starts."""
    if os.pread(file.fileno(), len(read_before), start) == read_before:
        return False
    file.seek(0, os.SEEK_END)  # what is buffered is of the past
    file.seek(start)
    return True

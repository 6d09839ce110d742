"""The journal of a run: one JSON line a finished case, fsynced before the next case starts."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import BinaryIO

from pydantic import ValidationError

from nsabench.errors import UsageError
from nsabench.model.journal import LINE, Contents, Line
from nsabench.model.vocabulary import PassName


class Journal:
    """Append-only. Opening one for append removes a torn last line, and only that.

    contents: what it holds, up to the line that was appended last.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: BinaryIO = path.open("ab")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise UsageError(
                f"{path.parent} is being written by another nsabench",
                "wait for it, or give --out another folder.",
            ) from None
        try:
            self.contents, whole = _read(path)
        except UsageError:
            self._file.close()
            raise
        self._file.truncate(whole)

    def done(self, name: PassName) -> set[str]:
        """The ids of the cases that a pass has journaled."""
        return {entry.case_id for entry in self.contents.of(name)}

    def append(self, line: Line) -> None:
        """Raises `OSError` when the disk is full; the torn line is forgiven on resume."""
        self._file.write(line.model_dump_json().encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self.contents.add(line)

    def close(self) -> None:
        self._file.close()


def read(path: Path) -> Contents:
    """All whole lines. Raises `UsageError` when a line other than a torn last one is broken."""
    return _read(path)[0]


def _read(path: Path) -> tuple[Contents, int]:
    contents, whole = Contents(), 0
    try:
        text = path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror}", "give the folder that nsabench made."
        ) from None
    # Only a newline ends a line: a stray \r must not pass for a torn last one.
    for number, line in enumerate(text.split(b"\n")[:-1], 1):
        try:
            contents.add(LINE.validate_json(line))
        except ValidationError:
            raise UsageError(
                f"{path}:{number}: not a line of a run's journal",
                "the file was altered or the disk is bad: start a new run.",
            ) from None
        whole += len(line) + 1
    return contents, whole

"""Hands over the inputs of a look one set at a time: the next when the answer to the last is there.

Whoever had all of them at once could answer them in one call, and each call would seem to take its
share of that.
"""

from __future__ import annotations

import os
import select
import shutil
import stat
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from nsabench.execution.protocol import Sheet


@dataclass(frozen=True)
class Papers:
    """Files of a look in a folder: inputs, and gradients of the outputs, one of each a set."""

    folder: Path
    name: str
    count: int

    @property
    def inputs(self) -> str:
        return str(self.folder / f"{self.name}.in")

    @property
    def gradient(self) -> str:
        return str(self.folder / f"{self.name}.gradient")

    @property
    def turns(self) -> str:
        return str(self.folder / f"{self.name}.turns")

    @property
    def outputs(self) -> Path:
        return self.folder / f"{self.name}.out"

    def of(self, index: int) -> tuple[Path, Path]:
        """The inputs of a set, and its gradient."""
        return Path(f"{self.inputs}.{index}"), Path(f"{self.gradient}.{index}")

    def all(self) -> Iterator[Path]:
        """Whatever may be there."""
        yield self.outputs
        yield from (Path(f"{self.turns}.{end}") for end in ("asked", "given"))
        for index in range(self.count):
            yield from self.of(index)

    def copy(self, to: Papers) -> None:
        for index in range(self.count):
            for one, other in zip(self.of(index), to.of(index), strict=True):
                if one.exists():
                    shutil.copyfile(one, other)


Moves = Sequence[tuple[Path, Path]]


def move(paths: Moves) -> None:
    for one, other in paths:
        if one.exists():
            one.rename(other)


class Turnstile:
    """Serves one look, in a thread of its own from `open` to `close`.

    moves: for each set what is put where it is awaited. answers: where each answer lies in the file
    of outputs. taken: a file of our own, where answers go as they were when the next set was asked
    for. What is asked for early is given early: the answer that is not there by then counts as it
    is. Raises `OSError` when its pipes cannot be made.
    """

    def __init__(
        self, at: Papers, moves: Sequence[Moves], answers: Sequence[Sequence[Sheet]], taken: Path
    ) -> None:
        self._moves = moves
        self._outputs = at.outputs
        self._taken = taken
        self._starts = [answer[0].offset for answer in answers]
        with ExitStack() as unless_made:
            asked, given = (Path(f"{at.turns}.{end}") for end in ("asked", "given"))
            self._asked = _pipe(asked)
            unless_made.callback(os.close, self._asked)
            self._given = _pipe(given)
            unless_made.callback(os.close, self._given)
            self._ended, self._end = os.pipe()
            unless_made.pop_all()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self.given = 1
        self.bytes_taken = 0  # of the outputs, from their beginning
        self.fault = ""  # why an answer could not be read
        self.trouble = ""  # why it could not be kept, which is nobody's fault

    @property
    def is_left(self) -> bool:
        """Whether there are sets that nobody asked for."""
        return self.given < len(self._moves)

    def open(self) -> None:
        """The first set is there: from here on the next are given."""
        self._thread.start()

    def close(self) -> None:
        os.close(self._end)
        if self._thread.ident is not None:
            self._thread.join()
        for descriptor in (self._asked, self._given, self._ended):
            os.close(descriptor)

    def _serve(self) -> None:
        if not self.is_left:
            return
        with ExitStack() as files:
            try:
                self._copy = os.open(self._taken, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
                files.callback(os.close, self._copy)
            except OSError as error:
                self.trouble = str(error)
            found = -1
            while self.is_left:
                ready, _, _ = select.select([self._asked, self._ended], [], [])
                if self._ended in ready:
                    return
                os.read(self._asked, 1)
                if found < 0 and not self.fault:
                    found = self._opened()
                    if found >= 0:
                        files.callback(os.close, found)
                self._take(found)
                with suppress(OSError):  # what is not there cannot be read
                    move(self._moves[self.given])
                self.given += 1
                try:
                    os.write(self._given, b"\n")
                except BlockingIOError:  # nobody reads what is given
                    return

    def _opened(self) -> int:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            found = os.open(self._outputs, flags)
        except OSError as error:
            self.fault = str(error)
            return -1
        if not stat.S_ISREG(os.fstat(found).st_mode):
            os.close(found)
            self.fault = "they are no file"
            return -1
        return found

    def _take(self, outputs: int) -> None:
        """Copy the answer to the set that was given last to its place."""
        if self.fault or self.trouble:
            return
        start, end = self._starts[self.given - 1 : self.given + 1]
        try:
            part = os.pread(outputs, end - start, start)
        except (OSError, MemoryError) as error:
            self.fault = str(error) or type(error).__name__
            return
        if len(part) != end - start:  # cut, so that nothing of it would be taken
            self.fault = f"{len(part)} bytes are there of an answer of {end - start}"
            return
        try:
            written = os.pwrite(self._copy, part, start)
        except OSError as error:
            self.trouble = str(error)
            return
        if written != len(part):
            self.trouble = "there is no room"
            return
        self.bytes_taken = end


def _pipe(path: Path) -> int:
    """A named one, of which both ends are open, so that nobody waits for the other to open it."""
    os.mkfifo(path, 0o600)
    return os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)

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
from contextlib import suppress
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
    of outputs. What is asked for early is given early: the answer that is not there by then counts
    as it is.
    """

    def __init__(self, at: Papers, moves: Sequence[Moves], answers: Sequence[Sequence[Sheet]]):
        self._moves = moves
        self._outputs = at.outputs
        self._starts = [answer[0].offset for answer in answers]
        self._asked, self._given = (_pipe(Path(f"{at.turns}.{e}")) for e in ("asked", "given"))
        self._ended, self._end = os.pipe()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self.given = 1
        self.taken: list[bytes] = []  # answers, as they were when the next set was asked for
        self.fault = ""  # why one could not be read

    @property
    def is_left(self) -> bool:
        """Whether a set was not asked for."""
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
        outputs = -1
        try:
            while self.is_left:
                ready, _, _ = select.select([self._asked, self._ended], [], [])
                if self._ended in ready:
                    return
                os.read(self._asked, 1)
                if outputs < 0 and not self.fault:
                    outputs = self._opened()
                self._take(outputs)
                with suppress(OSError):  # what is not there cannot be read
                    move(self._moves[self.given])
                self.given += 1
                os.write(self._given, b"\n")
        except BlockingIOError:  # nobody reads what is given
            return
        finally:
            if outputs >= 0:
                os.close(outputs)

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
        if self.fault:
            return
        start, end = self._starts[self.given - 1 : self.given + 1]
        try:
            self.taken.append(os.pread(outputs, end - start, start))
        except OSError as error:
            self.fault = str(error)


def _pipe(path: Path) -> int:
    """A named one, of which both ends are open, so that nobody waits for the other to open it."""
    os.mkfifo(path, 0o600)
    return os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)

"""The folder that workers write to, and what is hidden from them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from functools import cache
from math import inf
from pathlib import Path
from threading import Lock

from nsabench.running.supervisor.temporary import TemporaryFolder, sweep
from nsabench.signing.secrecy import variables
from nsabench.worker.protocol import Sandbox

MOST_BYTES = 16 << 30
MOST_FILES = 1 << 18
ENTRY_BYTES = 4096  # of a name, whatever it is of: a folder, a link, or an empty file
# Of a processor, and not of the clock: a machine that is busy shows nothing.
WALKING_S = 20.0
WALK_EVERY_S = 2.0
_ASIDE = "scratch"
LIMIT = f"{MOST_BYTES >> 30} GiB, or {MOST_FILES} files,"


_walks = Lock()
_walked_at: dict[str, float] = {}  # by folder; workers that compile at once have one together


def begins_walk(folder: str) -> bool:
    """Whether whoever asks is to walk through a folder now, since nobody has begun to for a
    while."""
    now = time.monotonic()
    with _walks:
        if now - _walked_at.get(folder, -inf) < WALK_EVERY_S:
            return False
        _walked_at[folder] = now
        return True


def holds_more(folder: Path) -> bool:
    """Whether a folder takes more of its disk than a scratch may, or cannot be walked through:
    what is nested too deep, or may not be read, hides what it holds."""
    taken = files = 0
    end = time.thread_time() + WALKING_S
    left = [str(folder)]
    while left:
        try:
            with os.scandir(left.pop()) as entries:
                for entry in entries:
                    files += 1
                    taken += ENTRY_BYTES + _bytes_of(entry)
                    if taken > MOST_BYTES or files > MOST_FILES or time.thread_time() > end:
                        return True
                    if entry.is_dir(follow_symlinks=False):
                        left.append(entry.path)
        except (FileNotFoundError, NotADirectoryError):  # it is gone again, or another
            continue
        except OSError:
            return True
    return False


def _bytes_of(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat(follow_symlinks=False).st_blocks * 512
    except FileNotFoundError:  # it is gone again
        return 0


class Scratch:
    """A folder of its own for the workers of one executor, with the caches of their compilers: what
    one run's kernels leave there reaches no other run.

    run: the folder of the run; it, and the runs beside it, are hidden.
    """

    def __init__(self, run: Path | None = None) -> None:
        _sweep_once()
        self._folder = TemporaryFolder()
        self._begins_as = ""
        self._sandbox = Sandbox(scratch=self.path, hidden=[str(path) for path in _hidden(run)])

    @property
    def path(self) -> str:
        """What workers write to."""
        return self._folder.name

    def next_sandbox(self) -> Sandbox:
        """What the worker enters that is started next."""
        begins_as, self._begins_as = self._begins_as, ""
        return self._sandbox.model_copy(update={"begins_as": begins_as})

    def put_aside(self) -> TemporaryFolder:
        """Keep what workers have left here, for those that `begin_afresh`. None runs meanwhile."""
        aside = TemporaryFolder()
        Path(self.path).rename(Path(aside.name, _ASIDE))
        Path(self.path).mkdir(0o700)
        return aside

    def empty(self) -> None:
        """Forget what workers have left here. None runs meanwhile."""
        self.put_aside().remove()

    def begin_afresh(self, aside: TemporaryFolder) -> None:
        """Forget what workers have left here. The next one begins with what was put aside: caches
        of compilers, at the path where they were written, since some hold paths."""
        self.empty()
        self._begins_as = str(Path(aside.name, _ASIDE))

    def remove(self) -> None:
        self._folder.remove()


@cache
def _sweep_once() -> None:
    """Remove what killed runs have left."""
    sweep()


def _hidden(run: Path | None) -> Iterator[Path]:
    for value in variables().values():
        if value.startswith("/") and Path(value).is_file():
            yield Path(value)
    if run is not None:
        yield run
        yield from (plan.parent for plan in run.parent.glob("*/plan.json"))

"""Make the folder that workers write to, and list what is hidden from them."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from math import inf
from pathlib import Path
from threading import Lock

from nsabench.signing.secrecy import variables
from nsabench.worker.protocol import Sandbox

MOST_BYTES = 16 << 30
MOST_FILES = 1 << 18
ENTRY_BYTES = 4096  # of any entry, also a link or an empty file
WALKING_S = 20.0  # CPU time
WALK_EVERY_S = 2.0
_ASIDE = "scratch"
LIMIT = f"{MOST_BYTES >> 30} GiB, or {MOST_FILES} files,"

_walks = Lock()
_walked_at: dict[str, float] = {}  # by folder; workers that compile at once share one


def begins_walk(folder: str) -> bool:
    """Return whether it is time to measure a folder, and note that this is done now."""
    now = time.monotonic()
    with _walks:
        if now - _walked_at.get(folder, -inf) < WALK_EVERY_S:
            return False
        _walked_at[folder] = now
        return True


def holds_more(folder: Path) -> bool:
    """Return whether a folder exceeds the limits, or cannot be read."""
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
        except (FileNotFoundError, NotADirectoryError):  # it changed meanwhile
            continue
        except OSError:
            return True
    return False


def _bytes_of(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat(follow_symlinks=False).st_blocks * 512
    except FileNotFoundError:
        return 0


class TemporaryFolder(tempfile.TemporaryDirectory[str]):
    def __init__(self) -> None:
        super().__init__(prefix="nsabench-scratch-", ignore_cleanup_errors=True)

    def remove(self) -> None:
        # A kernel may have made folders that their owner can neither read nor write, or more in
        # each other than Python can walk.
        for command in (["chmod", "-R", "u+rwx"], ["rm", "-rf"]):
            subprocess.run([*command, "--", self.name], check=False, stderr=subprocess.DEVNULL)
        self.cleanup()


class Scratch:
    """A folder for the workers of one executor. The run and the runs beside it are hidden."""

    def __init__(self, run: Path | None = None) -> None:
        self._folder = TemporaryFolder()
        self._begins_as = ""
        self._sandbox = Sandbox(scratch=self.path, hidden=[str(path) for path in _hidden(run)])

    @property
    def path(self) -> str:
        return self._folder.name

    def next_sandbox(self) -> Sandbox:
        begins_as, self._begins_as = self._begins_as, ""
        return self._sandbox.model_copy(update={"begins_as": begins_as})

    def put_aside(self) -> TemporaryFolder:
        """Empty the folder, and return its content. No worker may run meanwhile."""
        aside = TemporaryFolder()
        Path(self.path).rename(Path(aside.name, _ASIDE))
        Path(self.path).mkdir(0o700)
        return aside

    def empty(self) -> None:
        self.put_aside().remove()

    def begin_afresh(self, aside: TemporaryFolder) -> None:
        """Have the next worker begin with a copy at the same path, since caches hold paths."""
        self.empty()
        self._begins_as = str(Path(aside.name, _ASIDE))

    def remove(self) -> None:
        self._folder.remove()


def _hidden(run: Path | None) -> Iterator[Path]:
    for value in variables().values():
        if value.startswith("/") and Path(value).is_file():
            yield Path(value)
    if run is not None:
        yield run
        yield from (plan.parent for plan in run.parent.glob("*/plan.json"))

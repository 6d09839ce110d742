"""The folder that workers write to, and what is hidden from them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from nsabench.execution.protocol import Sandbox
from nsabench.signing import run_keys
from nsabench.signing.secrecy import variables

MOST_BYTES = 16 << 30
MOST_FILES = 1 << 18
LIMIT = f"{MOST_BYTES >> 30} GiB, or {MOST_FILES} files,"


def holds_more(folder: Path) -> bool:
    """Whether a folder takes more of its disk than a scratch may."""
    taken = files = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            files += 1
            with suppress(OSError):  # it is gone again
                taken += Path(parent, name).lstat().st_blocks * 512
        if taken > MOST_BYTES or files > MOST_FILES:
            return True
    return False


class Scratch:
    """A folder of its own for the workers of one executor, with the caches of their compilers: what
    one run's kernels leave there reaches no other run.

    run: the folder of the run; it, and the runs beside it, are hidden.
    """

    def __init__(self, run: Path | None = None) -> None:
        self._folder, self._private = (
            tempfile.TemporaryDirectory(prefix="nsabench-", ignore_cleanup_errors=True)
            for _ in range(2)
        )
        hidden = [str(path) for path in _hidden(run)]
        self.sandbox = Sandbox(scratch=self.path, hidden=[*hidden, self._private.name])
        # The referee writes where no worker sees it, and sees no more than a worker.
        self.of_the_referee = Sandbox(scratch=self._private.name, hidden=[*hidden, self.path])

    @property
    def path(self) -> str:
        """What workers write to."""
        return self._folder.name

    def remove(self) -> None:
        self._folder.cleanup()
        self._private.cleanup()


def _hidden(run: Path | None) -> Iterator[Path]:
    yield run_keys.folder()
    for value in variables().values():
        if value.startswith("/") and Path(value).is_file():
            yield Path(value)
    if run is not None:
        yield run
        yield from (journal.parent for journal in run.parent.glob("*/journal.jsonl"))

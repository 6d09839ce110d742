"""Temporary folders of which any process sees whether the one that made them still lives.

Who is killed leaves its folders behind, with all that compilers have kept there. A lock ends with
the process that holds it, whatever ends that: what nobody holds any more is nobody's.
"""

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

PREFIX = "nsabench-scratch-"
YOUNG_S = 600.0  # one that was made just now is not locked yet


class Temporary(tempfile.TemporaryDirectory[str]):
    """A folder of this user alone, which is there until `remove`, or until somebody sweeps once
    this process is gone. below: the folder that it lies in; None: that of the system."""

    def __init__(self, below: Path | None = None) -> None:
        super().__init__(prefix=PREFIX, dir=below, ignore_cleanup_errors=True)
        self._lock = -1
        self.hold()

    def hold(self) -> None:
        """Lock what lies at its path now."""
        self._let_go()
        self._lock = os.open(self.name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with suppress(OSError):  # a file system without locks: it is never swept
            fcntl.flock(self._lock, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def remove(self) -> None:
        """Remove it, whatever foreign code has written there."""
        try:
            self.cleanup()
        except RecursionError:  # Python calls itself for each folder in another
            _remove(self.name)
        self._let_go()

    def _let_go(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1


def sweep(below: Path) -> None:
    """Remove what processes of this user that are gone have left in a folder."""
    for path in below.glob(f"{PREFIX}*"):
        with suppress(OSError):  # somebody else removes it, or it is another user's
            if _is_left(path):
                _remove(str(path))


def _is_left(path: Path) -> bool:
    known = path.lstat()
    is_own = stat.S_ISDIR(known.st_mode) and known.st_uid == os.geteuid()
    if not is_own or time.time() - known.st_mtime < YOUNG_S:
        return False
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # somebody holds it, or nothing is locked here
        return False
    finally:
        os.close(lock)
    return True


def _remove(folder: str) -> None:
    subprocess.run(["rm", "-rf", "--", folder], check=False, stderr=subprocess.DEVNULL)

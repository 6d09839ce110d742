"""Copy the caches of compilers that earlier workers left in a scratch.

Foreign code has written there. So this runs inside the sandbox, follows no link, opens only files,
and ends soon. A cache is copied completely or not at all, since compilers trust its content.
"""

from __future__ import annotations

import os
import shutil
import stat
import time
from pathlib import Path

MOST_BYTES = 4 << 30  # of lengths, so that holes count
MOST_FILES = 1 << 17
MOST_DEPTH = 32
COPYING_S = 30.0
# Variants that were the fastest beside a dozen other processes. A worker alone chooses again.
CHOICES = (".autotune.json", ".best_config")
_CHUNK = 1 << 20


class NotWhole(Exception):
    pass


class Caches:
    def __init__(self, others: Path, scratch: Path) -> None:
        self._others = others
        self._scratch = scratch
        self._bytes = MOST_BYTES
        self._files = MOST_FILES
        self._end = time.monotonic() + COPYING_S

    def bring(self, name: str) -> bool:
        """Copy a folder that is missing or empty. Return whether that succeeded."""
        making = self._scratch / f".{name}.copied"
        try:
            self._copy(self._others / name, making)
            making.rename(self._scratch / name)
        except (NotWhole, OSError):
            shutil.rmtree(making, ignore_errors=True)
            return False
        return True

    def _copy(self, source: Path, target: Path) -> None:
        if not stat.S_ISDIR(source.lstat().st_mode):
            raise NotWhole
        left = [(source, target, 0)]
        while left:
            folder, copy, depth = left.pop()
            if depth > MOST_DEPTH:
                raise NotWhole
            copy.mkdir()
            with os.scandir(folder) as entries:
                for entry in entries:
                    self._refuse_too_much()
                    path = copy / entry.name
                    if entry.is_symlink():
                        path.symlink_to(Path(entry.path).readlink())
                    elif entry.is_dir(follow_symlinks=False):
                        left.append((Path(entry.path), path, depth + 1))
                    elif entry.is_file(follow_symlinks=False) and not _is_choice(entry.name):
                        self._copy_file(entry.path, path)

    def _copy_file(self, source: str, target: Path) -> None:
        opened = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(opened, "rb") as of, target.open("xb") as to:
            status = os.fstat(of.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise NotWhole
            while chunk := of.read(_CHUNK):
                self._bytes -= len(chunk)
                self._refuse_too_much()
                to.write(chunk)
            os.fchmod(to.fileno(), stat.S_IMODE(status.st_mode))
        # ninja compares times to the nanosecond.
        os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))

    def _refuse_too_much(self) -> None:
        self._files -= 1
        if self._bytes < 0 or self._files < 0 or time.monotonic() > self._end:
            raise NotWhole


def _is_choice(name: str) -> bool:
    return name.endswith(CHOICES)

"""Temporary folders that go although the process that made them was killed.

Each process locks a file, and its folders carry the name of that. A lock ends with its process,
whatever ends that, so that who begins later sees which folders are nobody's. The files lie where
no worker can open one: a kernel could hold the lock of another run, or take it before its owner.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import subprocess
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from secrets import token_hex

PREFIX = "nsabench-scratch-"
_SUFFIX = ".lock"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class TemporaryFolder(tempfile.TemporaryDirectory[str]):
    """A folder of this user alone, which is there until `remove`, or until somebody sweeps once
    this process is gone.

    locks: where processes lock their files. below: the folder that it lies in; None: the system's.
    """

    def __init__(self, locks: Path, below: Path | None = None) -> None:
        prefix = f"{PREFIX}{_token(locks, os.getpid())}-"
        super().__init__(prefix=prefix, dir=below, ignore_cleanup_errors=True)

    def remove(self) -> None:
        """Remove it, whatever foreign code has written there."""
        try:
            self.cleanup()
        except RecursionError:  # Python calls itself for each folder in another
            _remove(self.name)


def sweep(locks: Path, *places: Path) -> None:
    """Remove what processes of this machine that are gone have left in `places`.

    Raises nothing: what cannot be removed stays.
    """
    for path in locks.glob(f"{_boot()}?*{_SUFFIX}") if _boot() else ():
        with suppress(OSError), path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises where its process lives
            for place in places:
                for folder in place.glob(f"{PREFIX}{path.stem}-*"):
                    _remove(str(folder))
            path.unlink()


@cache
def _token(locks: Path, pid: int) -> str:
    """What names the folders of this process, which holds the lock of that name from now on.

    pid: of this process; one that was forked has a lock of its own.
    """
    token = f"{_boot()}{token_hex(4)}"
    path = locks / f"{token}{_SUFFIX}"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with suppress(OSError):  # a file system without locks: nobody takes this one either
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    if not os.fstat(descriptor).st_nlink:  # somebody swept before it was locked
        os.close(descriptor)
        return _token.__wrapped__(locks, pid)
    atexit.register(path.unlink, missing_ok=True)
    return token


@cache
def _boot() -> str:
    """Of this machine, since it was started; of locks on files that several share, only those of
    one machine tell of its processes. Empty where it is not known: then nothing is swept."""
    with suppress(OSError):
        return _BOOT_ID.read_text().strip().replace("-", "")[:12] + "-"
    return ""


def _remove(folder: str) -> None:
    if Path(folder).is_symlink():  # somebody else's: `chmod` would follow it
        Path(folder).unlink()
        return
    # A kernel may have made folders that their owner can neither read nor write.
    for command in (["chmod", "-R", "u+rwx"], ["rm", "-rf"]):
        subprocess.run([*command, "--", folder], check=False, stderr=subprocess.DEVNULL)

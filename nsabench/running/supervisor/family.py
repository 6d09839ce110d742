"""A process and all that it started."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import psutil

_LISTED = Path("/proc/thread-self/children").exists()


def family(pid: int) -> list[psutil.Process]:
    """It first, then its descendants. Of one that is gone, nobody."""
    found = []
    for one in (pid, *descendants(pid)):
        with contextlib.suppress(psutil.Error):
            found.append(psutil.Process(one))
    return found


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    found = []
    for process in processes:
        with contextlib.suppress(psutil.Error):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def children(pid: int) -> set[int]:
    """Of all its threads. The kernel's own list, where it has one: to look at all processes of a
    machine takes milliseconds."""
    found: set[int] = set()
    if not _LISTED:
        with contextlib.suppress(psutil.Error):
            found.update(child.pid for child in psutil.Process(pid).children())
        return found
    for thread in _threads(pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            found.update(map(int, (thread / "children").read_bytes().split()))
    return found


def descendants(pid: int) -> set[int]:
    """Processes that it started, and those that they did."""
    found: set[int] = set()
    if not _LISTED:  # all of them in one look
        with contextlib.suppress(psutil.Error):
            found.update(child.pid for child in psutil.Process(pid).children(recursive=True))
        return found
    new = children(pid)
    while new:
        found |= new
        new = set().union(*map(children, new)) - found
    return found


def takes_more(pid: int, limit_bytes: int) -> bool:
    """Whether all of a family that still live hold more memory than that."""
    found = family(pid)
    # Forked processes share pages, and each counts them all; to count a page once takes longer.
    return all(_memory_of(found, of) > limit_bytes for of in (_resident, _shared_once))


def _memory_of(processes: list[psutil.Process], of_one: Callable[[psutil.Process], int]) -> int:
    """Bytes of all that still live."""
    total = 0
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            total += of_one(process)
    return total


def _resident(process: psutil.Process) -> int:
    return int(process.memory_info().rss)


def _shared_once(process: psutil.Process) -> int:
    """A page that n processes share counts as 1/n in each."""
    try:
        return int(process.memory_full_info().pss)
    except psutil.AccessDenied:
        return _resident(process)  # a process can forbid that its pages are counted


def _threads(pid: int) -> list[Path]:
    """Of a process that is gone, none."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return list(Path(f"/proc/{pid}/task").iterdir())
    return []

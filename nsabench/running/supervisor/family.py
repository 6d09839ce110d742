"""List a process and all its descendants."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

import psutil

# Whether the kernel lists children. To search all processes of a machine takes milliseconds.
_LISTED = Path("/proc/thread-self/children").exists()


def processes_of(pids: Iterable[int]) -> list[psutil.Process]:
    existing = []
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            existing.append(psutil.Process(pid))
    return existing


def family(pid: int) -> list[psutil.Process]:
    return processes_of((pid, *descendants(pid)))


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    living = []
    for process in processes:
        with contextlib.suppress(psutil.Error):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                living.append(process)
    return living


def children(pid: int) -> set[int]:
    if not _LISTED:
        return _list_by_psutil(pid, recursive=False)
    pids: set[int] = set()
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the process has ended
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                pids.update(map(int, (thread / "children").read_bytes().split()))
    return pids


def descendants(pid: int) -> set[int]:
    if not _LISTED:
        return _list_by_psutil(pid, recursive=True)
    pids: set[int] = set()
    new = children(pid)
    while new:
        pids |= new
        new = set().union(*map(children, new)) - pids
    return pids


def _list_by_psutil(pid: int, *, recursive: bool) -> set[int]:
    with contextlib.suppress(psutil.Error):
        return {child.pid for child in psutil.Process(pid).children(recursive=recursive)}
    return set()


def takes_more(pid: int, limit_bytes: int) -> bool:
    members = family(pid)
    # The resident size counts shared pages in each process. To count them once takes longer.
    resident = shared_once = 0
    for process in members:
        with contextlib.suppress(psutil.NoSuchProcess):
            resident += process.memory_info().rss
    if resident <= limit_bytes:
        return False
    for process in members:
        with contextlib.suppress(psutil.NoSuchProcess):
            try:
                shared_once += process.memory_full_info().pss
            except psutil.AccessDenied:  # a process can forbid that its pages are counted
                shared_once += process.memory_info().rss
    return shared_once > limit_bytes

"""Find what a worker has started, also what has lost its parent, and end it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

from nsabench.running import launch
from nsabench.running.launch import ForkedProcess, Program

REAP_S = 10.0
WAIT_S = 2.0  # for killed orphans
PR_SET_CHILD_SUBREAPER = 36
# Whether the kernel lists children. To search all processes of a machine takes milliseconds.
_LISTED = Path("/proc/thread-self/children").exists()

_workers: set[int] = set()
# Several threads start workers. A new worker must not be taken for an orphan.
_births = threading.Lock()


def start_worker(program: Program) -> ForkedProcess | subprocess.Popen[bytes]:
    with _births:
        process = launch.start(program)
        _workers.add(process.pid)
    return process


def forget_worker(pid: int) -> None:
    _workers.discard(pid)


def list_own() -> set[int]:
    with _births:
        return _workers | launch.template_pids()


def adopt_orphans() -> None:
    """Become the parent of descendants that lose theirs, so that none escapes."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1)


class Orphans:
    """The processes that this one adopts after this object was made."""

    def __init__(self) -> None:
        adopt_orphans()
        self._siblings = list_children(os.getpid())
        self._born = time.time()

    def find(self) -> list[psutil.Process]:
        with _births:
            ours = _workers | launch.template_pids() | self._siblings
            children = _open(list_children(os.getpid()) - ours)
        return [child for child in children if self._was_left_behind(child)]

    def _was_left_behind(self, child: psutil.Process) -> bool:
        try:
            is_new = child.create_time() >= self._born - 1
            # It may hide the mark in a session of its own.
            is_apart = is_new and os.getsid(child.pid) != os.getsid(0)
            return is_apart or child.environ().get(launch.MARK) == launch.mark
        except (psutil.Error, ProcessLookupError):  # it has ended, or made itself unreadable
            return False

    def kill(self) -> None:
        """Kill them by whole groups, since they may fork meanwhile."""
        ends = time.monotonic() + REAP_S
        while (orphans := self.find()) and time.monotonic() < ends:
            for orphan in orphans:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    group = os.getpgid(orphan.pid)
                    if group not in _workers | {os.getpgid(0)}:
                        os.killpg(group, signal.SIGKILL)
                for process in list_family(orphan.pid):
                    with contextlib.suppress(psutil.Error):
                        process.kill()
            psutil.wait_procs(orphans, WAIT_S)


def list_family(pid: int) -> list[psutil.Process]:
    return _open((pid, *list_descendants(pid)))


def list_descendants(pid: int) -> set[int]:
    pids: set[int] = set()
    new = list_children(pid)
    while new:
        pids |= new
        new = set().union(*map(list_children, new)) - pids
    return pids


def list_children(pid: int) -> set[int]:
    pids: set[int] = set()
    if not _LISTED:
        with contextlib.suppress(psutil.Error):
            pids.update(child.pid for child in psutil.Process(pid).children())
        return pids
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the process has ended
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                pids.update(map(int, (thread / "children").read_bytes().split()))
    return pids


def _open(pids: Iterable[int]) -> list[psutil.Process]:
    existing = []
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            existing.append(psutil.Process(pid))
    return existing


def select_alive(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    living = []
    for process in processes:
        with contextlib.suppress(psutil.Error):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                living.append(process)
    return living


def takes_more(pid: int, limit_bytes: int) -> bool:
    members = list_family(pid)
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

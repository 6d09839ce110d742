"""A process and whatever it started: who they are, and having none of them run for a while."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

STOPPING_S = 2.0  # a process that has not stopped by then is held by the kernel, or forks others
PATIENCE = 50  # looks at a process without a pause
PAUSE_S = 2e-4
# Of a thread after it shows that it stopped: it may be switched off once more, and on a machine
# that takes its turns with others that takes a while.
SWITCHES = 1
SWITCHING_S = 2e-3
TICKS = 2
_LISTED = Path("/proc/thread-self/children").exists()
_AT_REST = b"TtZX"  # stopped, stopped by a tracer, dead


class StillRuns(Exception):
    """Something of a family could not be stopped."""


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


@contextmanager
def stopped(leader: int, others: Callable[[], set[int]]) -> Iterator[None]:
    """Nothing of a family runs meanwhile: not its leader, nor those of whom `others` tells then.

    Raises `StillRuns` when that cannot be had, and at the end when one of them ran nevertheless: a
    timer of its own may wake a process.
    """
    held: list[int] = []
    deadline = time.monotonic() + STOPPING_S
    try:
        new = {leader}
        while new:  # they may have forked until they were stopped
            for pid in new:
                held.append(pid)
                _send(pid, signal.SIGSTOP)
            for pid in new:
                _await_rest(pid, deadline)
            new = others().difference(held)
        before = {pid: _turns(pid) for pid in held}
        yield
        _refuse_runners(before)
    finally:
        for pid in held:
            _send(pid, signal.SIGCONT)


@dataclass(frozen=True)
class _Turns:
    """What a thread had of a processor. switches: how often it got one; None: not known."""

    seconds: float
    switches: int | None

    def ran_since(self, before: _Turns) -> bool:
        seconds = self.seconds - before.seconds
        if self.switches is None or before.switches is None:
            return seconds > (TICKS + 0.5) / os.sysconf("SC_CLK_TCK")
        return seconds > SWITCHING_S or self.switches - before.switches > SWITCHES


def _turns(pid: int) -> dict[str, _Turns]:
    """Of all threads of a process that are there."""
    found = {}
    for thread in _threads(pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found[thread.name] = _turns_of(thread)
    return found


def _turns_of(thread: Path) -> _Turns:
    with contextlib.suppress(OSError, ValueError):  # a kernel may have no such file
        nanoseconds, _, switches = map(int, (thread / "schedstat").read_bytes().split())
        return _Turns(nanoseconds / 1e9, switches)
    content = (thread / "stat").read_bytes()
    user, system = content[content.rindex(b")") + 2 :].split()[11:13]
    return _Turns((int(user) + int(system)) / os.sysconf("SC_CLK_TCK"), None)


def _refuse_runners(before: dict[int, dict[str, _Turns]]) -> None:
    """Raises `StillRuns` when one of these processes ran since then."""
    for pid, threads in before.items():
        now = _turns(pid)
        ran = any(now[name].ran_since(threads[name]) for name in now.keys() & threads.keys())
        if ran or now.keys() - threads.keys() or not _is_at_rest(pid):
            raise StillRuns(f"process {pid} went on by itself")
        if children(pid) - before.keys():
            raise StillRuns(f"process {pid} started another")


def _send(pid: int, signum: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signum)


def _await_rest(pid: int, deadline: float) -> None:
    looks = 0
    while not _is_at_rest(pid):
        if time.monotonic() > deadline:
            raise StillRuns(f"process {pid} goes on")
        looks += 1
        if looks > PATIENCE:
            time.sleep(PAUSE_S)


def _is_at_rest(pid: int) -> bool:
    """Whether all of its threads are."""
    for thread in _threads(pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            content = (thread / "stat").read_bytes()
            if content[content.rindex(b")") + 2] not in _AT_REST:
                return False
    return True


def _threads(pid: int) -> list[Path]:
    """Of a process that is gone, none."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return list(Path(f"/proc/{pid}/task").iterdir())
    return []

"""Detects processes that waited for a core, by schedstat or by the load of other processes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import psutil

BUSY = 0.1  # share of the time that a thread waited; timings may have waited too


def waits_of(pids: Iterable[int], root: Path = Path("/")) -> dict[int, float]:
    """Return the seconds that each thread waited for a core; empty if the kernel does not count."""
    waits: dict[int, float] = {}
    for pid in pids:
        with suppress(OSError):
            for thread in (root / f"proc/{pid}/task").iterdir():
                with suppress(OSError, ValueError):
                    _, waited, _ = map(int, (thread / "schedstat").read_text().split())
                    waits[int(thread.name)] = waited * 1e-9
    return waits


def idle_and_others(pids: Iterable[int]) -> tuple[float, float]:
    """Return core-seconds since boot: idle, and used by other processes, on this process's
    cores."""
    cores = psutil.cpu_times(percpu=True)
    usable = [cores[core] for core in os.sched_getaffinity(0)]
    used = sum(c.user + c.nice + c.system + c.steal for c in usable)
    for pid in pids:
        with suppress(psutil.Error):
            own = psutil.Process(pid).cpu_times()
            used -= own.user + own.system
    return sum(core.idle for core in usable), used


def watch(processes: Callable[[], Iterable[int]]) -> Callable[[], bool]:
    """Return a function that tells whether one of the processes has waited since this call.

    processes: returns their current numbers, which may change.
    """
    begun, before = time.monotonic(), waits_of(processes())
    idle_before, others_before = idle_and_others(processes())

    def was_busy() -> bool:
        now, limit_s = waits_of(processes()), BUSY * (time.monotonic() - begun)
        if now:
            return max(waited - before.get(who, 0.0) for who, waited in now.items()) > limit_s
        idle, others = idle_and_others(processes())
        return others - others_before > limit_s and idle - idle_before < limit_s

    return was_busy

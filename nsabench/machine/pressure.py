"""Reads how long processes waited for a core (schedstat, or PSI)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

BUSY = 0.1  # share of the time that a thread waited; timings may have waited too

# By the number of a thread; 0 is all of the machine.
Waits = Mapping[int, float]


def waits_of(pids: Iterable[int], root: Path = Path("/")) -> Waits:
    """Return the seconds that each thread of these processes waited for a core.

    If the kernel does not count that, those of the whole machine; empty if it counts neither.
    """
    found: dict[int, float] = {}
    for pid in pids:
        with suppress(OSError):
            for thread in (root / f"proc/{pid}/task").iterdir():
                with suppress(OSError, ValueError):
                    _, waited, _ = map(int, (thread / "schedstat").read_text().split())
                    found[int(thread.name)] = waited * 1e-9
    return found or _of_the_machine(root)


def _of_the_machine(root: Path) -> Waits:
    try:
        lines = (root / "proc/pressure/cpu").read_text().splitlines()
        some = next(line for line in lines if line.startswith("some "))
        return {0: int(some.rpartition("total=")[2]) * 1e-6}
    except (OSError, StopIteration, ValueError):
        return {}


def watch(processes: Callable[[], Iterable[int]]) -> Callable[[], bool]:
    """Return a function that says whether one of the processes has waited since this call.

    processes: returns their current numbers; they may be replaced.
    """
    begun, before = time.monotonic(), waits_of(processes())

    def was_busy() -> bool:
        now = waits_of(processes())
        if 0 in now and 0 not in before:  # the machine's, since its start
            return False
        most = max((waited - before.get(who, 0.0) for who, waited in now.items()), default=0.0)
        return most > BUSY * (time.monotonic() - begun)

    return was_busy

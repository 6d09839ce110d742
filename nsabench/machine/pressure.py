"""Reads how long processes waited for a core (schedstat)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

BUSY = 0.1  # share of the time that a thread waited; timings may have waited too


def waits_of(pids: Iterable[int], root: Path = Path("/")) -> dict[int, float]:
    """Return the seconds that each thread of these processes waited for a core, by its number.

    Empty if the kernel does not count them.
    """
    waits: dict[int, float] = {}
    for pid in pids:
        with suppress(OSError):
            for thread in (root / f"proc/{pid}/task").iterdir():
                with suppress(OSError, ValueError):
                    _, waited, _ = map(int, (thread / "schedstat").read_text().split())
                    waits[int(thread.name)] = waited * 1e-9
    return waits


def watch(processes: Callable[[], Iterable[int]]) -> Callable[[], bool]:
    """Return a function that says whether one of the processes has waited since this call.

    processes: returns their current numbers; they may be replaced.
    """
    begun, before = time.monotonic(), waits_of(processes())

    def was_busy() -> bool:
        now = waits_of(processes())
        most = max((waited - before.get(who, 0.0) for who, waited in now.items()), default=0.0)
        return most > BUSY * (time.monotonic() - begun)

    return was_busy

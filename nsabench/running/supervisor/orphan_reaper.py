"""Ends what workers started when the supervisor itself was killed and could not do it any more.

A program of its own, of the standard library only. Its input ends when the supervisor does, however
it does. Until then a line a worker says `+PID` at its birth and `-PID` when nothing of it is left.
"""

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

ROUNDS = 20  # a process may fork meanwhile, and shows no environment while it starts a program
PAUSE_S = 0.05


def main(mark: bytes) -> None:
    """Wait for the end of the input; kill the workers' groups and whatever carries the mark."""
    groups: set[int] = set()
    for line in sys.stdin.buffer:
        (groups.add if line[:1] == b"+" else groups.discard)(int(line[1:]))
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    for _ in range(ROUNDS):
        marked = [pid for pid in _processes() if _carries(pid, mark)]
        for pid in marked:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not marked and not groups:
            break
        time.sleep(PAUSE_S)


def _processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _carries(pid: int, mark: bytes) -> bool:
    try:
        return mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # it is gone, or not ours
        return False


if __name__ == "__main__":
    main(sys.argv[1].encode())

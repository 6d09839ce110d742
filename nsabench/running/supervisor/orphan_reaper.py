"""End what workers started if the supervisor is killed.

A program of its own that uses only the standard library. Its input ends when the supervisor does.
The line `+PID` says that a worker was started, and `-PID` that it and its children are gone.
"""

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

ROUNDS = 20  # a process may fork meanwhile, or be between two programs
PAUSE_S = 0.05


def main(mark: bytes) -> None:
    groups: set[int] = set()
    for line in sys.stdin.buffer:
        (groups.add if line[:1] == b"+" else groups.discard)(int(line[1:]))
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    for _ in range(ROUNDS):
        pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
        marked = [pid for pid in pids if _carries(pid, mark)]
        for pid in marked:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not marked and not groups:
            break
        time.sleep(PAUSE_S)


def _carries(pid: int, mark: bytes) -> bool:
    try:
        return mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # the process has ended, or is not ours
        return False


if __name__ == "__main__":
    main(sys.argv[1].encode())

"""A family stands still while it is held, or it is known that it did not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from nsabench.execution.supervisor import family

WAKING = """
import ctypes, os, signal, struct, sys, time

def woken(*_):
    end = time.process_time() + 0.02
    while time.process_time() < end:
        pass
    os.write(1, b"x")
    if sys.argv[1] == "stops again":
        os.kill(os.getpid(), signal.SIGSTOP)

signal.signal(signal.SIGCONT, woken)
libc = ctypes.CDLL(None)
create = getattr(libc, "timer_create", None) or ctypes.CDLL("librt.so.1").timer_create
set_time = getattr(libc, "timer_settime", None) or ctypes.CDLL("librt.so.1").timer_settime
event = ctypes.create_string_buffer(struct.pack("qii", 0, signal.SIGCONT, 0), 64)
timer = ctypes.c_void_p()
assert create(time.CLOCK_MONOTONIC, event, ctypes.byref(timer)) == 0
times = ctypes.create_string_buffer(struct.pack("qqqq", 0, 200_000_000, 0, 200_000_000))
assert set_time(timer, 0, times, None) == 0
while True:
    signal.pause()
"""

HONEST = """
import os, threading

def spin():
    while True:
        pass

threading.Thread(target=spin, daemon=True).start()
os.write(1, b"x")
spin()
"""


@contextmanager
def started(script: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Once it has written for the first time."""
    command = [sys.executable, "-S", "-c", script, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0) as process:
        try:
            assert process.stdout is not None and process.stdout.read(1)
            yield process
        finally:
            process.kill()


PARENT = """
import os, subprocess, sys
child = "import subprocess, time; subprocess.Popen(['sleep', '60']); print(1); time.sleep(60)"
held = subprocess.Popen([sys.executable, "-S", "-c", child], stdout=subprocess.PIPE)
held.stdout.read(1)
os.write(1, b"x")
held.wait()
"""


def test_a_family_is_told_without_a_look_at_all_processes_of_the_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with started(PARENT) as process:
        known = [process.pid, *(p.pid for p in psutil.Process(process.pid).children(True))]
        try:
            if family._LISTED:
                monkeypatch.delattr(psutil.Process, "children")
            found = [one.pid for one in family.family(process.pid)]
            assert len(known) == 3 and found[0] == process.pid and sorted(found) == sorted(known)
        finally:
            for pid in known[1:]:
                os.kill(pid, signal.SIGKILL)
    assert family.family(process.pid) == []


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("how", ["goes on", "stops again"])
def test_one_that_wakes_itself_is_seen(
    how: str, listed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not listed:  # as on a kernel that tells no more than the time
        monkeypatch.setattr(family, "_turns_of", in_ticks)
    with (
        started(WAKING, how) as process,
        pytest.raises(family.StillRuns, match="went on by itself"),
        family.stopped(process.pid, set),
    ):
        assert process.stdout is not None
        for _ in range(5):
            assert process.stdout.read(1)


def in_ticks(thread: Path) -> family._Turns:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "read_bytes", without_schedstat(Path.read_bytes))
        return TURNS_OF(thread)


TURNS_OF = family._turns_of


def without_schedstat(read: object) -> object:
    def found(path: Path) -> bytes:
        if path.name == "schedstat":
            raise FileNotFoundError(path)
        assert callable(read)
        content: bytes = read(path)
        return content

    return found


def test_one_that_computes_all_the_time_stands_still() -> None:
    with started(HONEST) as process:
        for _ in range(100):
            with family.stopped(process.pid, lambda: family.descendants(process.pid)):
                pass

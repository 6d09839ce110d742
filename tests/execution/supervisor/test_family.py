"""A process and its descendants are found without a look at all processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

from nsabench.execution.supervisor import family


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

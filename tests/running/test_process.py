"""Processes that a worker leaves behind are found, however they hide."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from nsabench.model.description import Described
from nsabench.model.vocabulary import Status
from nsabench.running import process_tree
from nsabench.running.process import Process, WorkerLost
from nsabench.running.process_tree import Program
from nsabench.worker.protocol import Describe

UNREADABLE = """
import ctypes, os, sys, time
import psutil
from nsabench.running.process_tree import Orphans

PR_SET_DUMPABLE = 4
if os.getuid() == 0:  # root reads everybody's environment; a run seldom is root
    os.setuid(65534)
orphans = Orphans()
said, says = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0)
        os.write(says, b"%d" % os.getpid())
        time.sleep(60)
    os._exit(0)
os.wait()
orphan = psutil.Process(int(os.read(said, 20)))
try:
    orphan.environ()
    print("readable")
except psutil.AccessDenied:
    orphans.kill()
    print("left" if orphan.is_running() else "killed")
orphan.kill() if orphan.is_running() else None
"""

FORKING = """
import os, time
import psutil
from nsabench.running.process_tree import Orphans

orphans = Orphans()
said, says = os.pipe()
if os.fork() == 0:
    os.setsid()
    os.write(says, b"%d" % os.getpid())
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if os.fork():
            os._exit(0)
        time.sleep(0.002)
    os._exit(0)
group = int(os.read(said, 20))
os.close(says)
orphans.kill()
try:
    os.killpg(group, 9)
    print("left")
except ProcessLookupError:
    print("killed")
"""


def end_of(script: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True
    )
    return done.stdout.strip()


def test_an_orphan_whose_environment_may_not_be_read_is_killed() -> None:
    end = end_of(UNREADABLE)
    if end == "readable":
        pytest.skip("this user may read every environment")
    assert end == "killed"


def test_orphans_that_fork_all_the_time_are_killed() -> None:
    assert end_of(FORKING) == "killed"


def test_a_worker_that_times_kernels_never_interprets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert "TRITON_INTERPRET" not in process_tree.make_environment("cuda")
    assert process_tree.make_environment("cpu")["TRITON_INTERPRET"] == "1"


def test_what_a_worker_starts_competes_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A helper that a candidate starts may be on the device."""
    script = "import subprocess; print(subprocess.Popen(['sleep', '60']).pid, flush=True); input()"
    command = [sys.executable, "-S", "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        helper = psutil.Process(int(worker.stdout.readline()))
        monkeypatch.setattr(process_tree, "_workers", {worker.pid})
        owned = process_tree.list_own()
        helper.kill()
        worker.communicate(b"\n")
    assert worker.pid in owned and helper.pid not in owned


def test_a_process_that_prints_much_at_its_end_can_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe holds 64 KiB. If nothing read it, the process looked as if it went on."""
    (tmp_path / "loud.py").write_text(
        "import os, signal\n"
        "os.close(1)\n"
        "os.write(2, bytes(1 << 20))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    environment = {**process_tree.make_environment("cpu"), "PYTHONPATH": str(tmp_path)}
    process = Process(Program("loud", [], environment))
    with pytest.raises(WorkerLost) as lost:
        process.ask(Describe(), Described, 60, 5, lambda reply: None)
    assert lost.value.death.status is Status.OUT_OF_MEMORY, lost.value

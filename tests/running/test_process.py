"""Processes of workers: how they are forked from a template, which has imported torch, and that all
they leave behind is found."""

import os
import signal
import subprocess
import sys
from dataclasses import replace

import psutil
import pytest

from nsabench.model.description import Described
from nsabench.model.vocabulary import Status
from nsabench.running import process_tree
from nsabench.running.process import Process, WorkerLost
from nsabench.running.process_tree import ForkedProcess, Program
from nsabench.worker.protocol import Describe
from tests import forked

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


def end_of(script):
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True
    )
    return done.stdout.strip()


def test_an_orphan_whose_environment_may_not_be_read_is_killed():
    end = end_of(UNREADABLE)
    if end == "readable":
        pytest.skip("this user may read every environment")
    assert end == "killed"


def test_orphans_that_fork_all_the_time_are_killed():
    assert end_of(FORKING) == "killed"


def test_a_worker_that_times_kernels_never_interprets_them(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert "TRITON_INTERPRET" not in process_tree.make_environment("cuda")
    assert process_tree.make_environment("cpu")["TRITON_INTERPRET"] == "1"


def test_what_a_worker_starts_competes_with_it(monkeypatch):
    """A helper that a candidate starts may use the device."""
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


def test_a_process_that_prints_much_at_its_end_can_end(tmp_path, monkeypatch):
    """A pipe holds 64 KiB. If nothing read the pipe, the process could not end."""
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


@pytest.fixture
def begun_anew(monkeypatch):
    """Start templates anew, without forking them from the one that imported torch for all tests."""
    monkeypatch.setattr(process_tree, "start_template", forked.started)
    monkeypatch.setenv("BEGUN", "anew")


@pytest.fixture
def program(request):
    if "begun_anew" in request.fixturenames:
        request.getfixturevalue("begun_anew")
    return Program("nsabench.worker", ["--device", "cpu"], process_tree.make_environment("cpu"))


@pytest.fixture
def worker(program):
    process = Process(program)
    yield process
    process.stop()


@pytest.mark.usefixtures("begun_anew")
def test_a_worker_is_forked_and_is_a_child_of_this_process(worker, program, monkeypatch, tmp_path):
    template = process_tree.template_pids()
    monkeypatch.chdir(tmp_path)
    other = Process(program)
    assert process_tree.template_pids() == template  # both came from one template
    for process, folder in ((worker, None), (other, tmp_path)):
        assert isinstance(process._process, ForkedProcess)
        answer = process.ask(Describe(), Described, 60, 5, lambda reply: None)
        assert answer.model_dump()["software"]["torch"]
        seen = psutil.Process(process.pid)
        assert seen.ppid() == os.getpid()
        assert os.getsid(process.pid) == process.pid
        assert seen.environ()["TRITON_INTERPRET"] == "1"
        assert folder is None or seen.cwd() == str(folder)
    other.stop()
    streams = other._process.stdin, other._process.stdout, other._process.stderr
    assert all(stream is not None and stream.closed for stream in streams)
    with monkeypatch.context() as patch:
        patch.setattr(os, "killpg", None)
        other.stop()  # another process may have this number by now


@pytest.mark.usefixtures("begun_anew")
def test_a_template_that_was_killed_is_replaced(worker, program):
    gone = process_tree.template_pids()
    for pid in gone:
        os.kill(pid, signal.SIGKILL)
    other = Process(program)
    assert isinstance(other._process, ForkedProcess)
    assert process_tree.template_pids() - gone
    other.stop()


def test_without_a_template_a_worker_is_started_the_long_way(program, tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('not here')")
    environment = {**program.environment, "PYTHONPATH": str(tmp_path)}
    process = Process(replace(program, environment=environment))
    assert isinstance(process._process, subprocess.Popen)
    process.stop()


def test_templates_of_many_environments_are_not_all_kept(program):
    before = process_tree.template_pids()
    for number in range(process_tree.MOST_TEMPLATES + 1):
        environment = {**program.environment, "NUMBER": str(number)}
        Process(replace(program, environment=environment)).stop()
    assert len(process_tree.template_pids()) == process_tree.MOST_TEMPLATES
    assert not any(psutil.pid_exists(pid) for pid in before)

"""Workers by fork: whose children they are, and what happens where none can be forked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from nsabench.execution.protocol import Calibrate, Calibrated, Describe
from nsabench.execution.supervisor import templates
from nsabench.execution.supervisor.loss import WorkerDied
from nsabench.execution.supervisor.process import WorkerProcess
from nsabench.execution.supervisor.program import Program, measuring
from nsabench.execution.supervisor.templates import ForkedProcess, NoTemplate
from nsabench.execution.timing import timer
from tests import forked

UNCLEAN = """
import threading
from nsabench.execution.worker import template

clean = template._state()
assert template._state() == clean
with open("/dev/null") as opened:
    assert template._state() != clean
    assert template._state(without=[opened.fileno()]) == clean
{spoil}
assert template._state() != clean
"""


@pytest.fixture
def begun_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Templates are started, and not forked from what has imported torch for all tests."""
    monkeypatch.setattr(templates, "start", forked.started)
    monkeypatch.setenv("BEGUN", "anew")


@pytest.fixture
def program(request: pytest.FixtureRequest) -> Program:
    if "begun_anew" in request.fixturenames:
        request.getfixturevalue("begun_anew")
    return measuring("cpu", None)


@pytest.fixture
def worker(program: Program) -> Iterator[WorkerProcess]:
    process = WorkerProcess(program)
    yield process
    process.stop()


@pytest.mark.usefixtures("begun_anew")
def test_a_worker_is_forked_and_is_a_child_of_this_process(
    worker: WorkerProcess, program: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    template = templates.pids()
    monkeypatch.chdir(tmp_path)
    other = WorkerProcess(program)
    assert templates.pids() == template  # both came from one
    for process, folder in ((worker, None), (other, tmp_path)):
        assert isinstance(process._process, ForkedProcess)
        [*_, answer] = process.ask(Describe(), 60)
        assert answer.model_dump()["software"]["torch"]
        seen = psutil.Process(process.pid)
        assert seen.ppid() == os.getpid()
        assert os.getsid(process.pid) == process.pid
        assert seen.environ()["TRITON_INTERPRET"] == "1"
        assert folder is None or seen.cwd() == str(folder)
    other.stop()


def test_how_a_forked_worker_ended_is_known(worker: WorkerProcess) -> None:
    assert worker._process.poll() is None
    os.kill(worker.pid, signal.SIGSEGV)
    with pytest.raises(WorkerDied) as died:
        list(worker.ask(Describe(), 60))
    assert died.value.returncode == -signal.SIGSEGV


def test_waiting_for_a_forked_worker_ends(worker: WorkerProcess) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        worker._process.wait(0.05)


@pytest.mark.usefixtures("begun_anew")
def test_a_template_that_was_killed_is_replaced(worker: WorkerProcess, program: Program) -> None:
    gone = templates.pids()
    for pid in gone:
        os.kill(pid, signal.SIGKILL)
    other = WorkerProcess(program)
    assert isinstance(other._process, ForkedProcess)
    assert templates.pids() - gone
    other.stop()


def test_without_a_template_a_worker_is_started_the_long_way(
    program: Program, tmp_path: Path
) -> None:
    (tmp_path / "triton.py").write_text("raise ImportError('not here')")
    environment = {**program.environment, "PYTHONPATH": str(tmp_path)}
    with pytest.raises(NoTemplate):
        templates.fork("nsabench.execution.worker", [], environment)
    process = WorkerProcess(replace(program, environment=environment))
    assert isinstance(process._process, subprocess.Popen)
    process.stop()


def test_that_an_environment_has_no_template_is_found_out_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To start one that is not clean takes seconds, and two of them for each worker took twice."""
    started = []

    class Unclean:
        def __init__(self, environment: Mapping[str, str]) -> None:
            started.append(environment)

        def fork(self, module: str, arguments: Sequence[str], mailbox: int | None) -> ForkedProcess:
            raise NoTemplate("it is not what it was")

    monkeypatch.setattr(templates, "Template", Unclean)
    for _ in range(3):
        with pytest.raises(NoTemplate):
            templates.fork("any", [], {"OF": "an unclean template"})
    assert len(started) == 2


def test_templates_of_many_environments_are_not_all_kept(program: Program) -> None:
    before = templates.pids()
    for number in range(templates.MOST_TEMPLATES + 1):
        environment = {**program.environment, "NUMBER": str(number)}
        WorkerProcess(replace(program, environment=environment)).stop()
    assert len(templates.pids()) == templates.MOST_TEMPLATES
    assert not any(psutil.pid_exists(pid) for pid in before)


@pytest.mark.parametrize(
    "spoil",
    [
        "threading.Thread(target=threading.Event().wait, daemon=True).start()",
        "import colorsys",
        "kept = open('/dev/null')",
    ],
)
def test_a_template_sees_that_it_is_not_what_it_was(spoil: str) -> None:
    subprocess.run([sys.executable, "-c", UNCLEAN.format(spoil=spoil)], check=True, timeout=60)


def test_what_pushes_the_caches_out_is_the_templates(worker: WorkerProcess) -> None:
    """To fill it took longer than the fork: a worker reads it where the template has it."""
    assert isinstance(worker._process, ForkedProcess)
    [*_, answer] = worker.ask(Calibrate(), 60)
    assert isinstance(answer, Calibrated)
    mapped = psutil.Process(worker.pid).memory_maps(grouped=False)
    size = timer.flush().nbytes
    shared = [m for m in mapped if not m.path.startswith("/") and m.rss >= size]
    assert any(m.private_dirty + m.private_clean < size // 100 for m in shared), shared

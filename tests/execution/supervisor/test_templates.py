"""Workers by fork: whose children they are, and what happens where none can be forked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
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

        def fork(self, module: str, arguments: Sequence[str]) -> ForkedProcess:
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


SAYS = "import sys; print('ahead_of_it' in sys.modules, 'torch._dynamo' in sys.modules)"
ASKS = "import torch; there = torch.cuda.is_available()"
SAYS_OF_GPUS = "import torch, ahead_of_it; print(ahead_of_it.there, torch.cuda.is_available())"


@pytest.fixture
def said(
    program: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[[], tuple[bool, list[str]]]:
    """What a forked worker has imported, and whether it came from the template that was there."""
    monkeypatch.setattr(templates, "_ahead", ())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "says.py").write_text(SAYS)
    environment = {**program.environment, "PYTHONPATH": str(tmp_path)}

    def fork() -> tuple[bool, list[str]]:
        before = templates.pids()
        forked = templates.fork("says", [], environment)
        with forked.stdin, forked.stdout, forked.stderr:
            words = forked.stdout.read().decode().split()
        assert forked.wait(60) == 0
        return templates.pids() == before, words

    fork()
    assert fork() == (True, ["False", "False"])
    return fork


@pytest.mark.usefixtures("begun_anew")
def test_what_is_imported_ahead_is_there_in_workers(
    said: Callable[[], tuple[bool, list[str]]], tmp_path: Path
) -> None:
    (tmp_path / "ahead_of_it.py").touch()
    templates.import_ahead(("ahead_of_it", "torch.which_no_version_has"))
    for _ in range(2):
        assert said() == (True, ["True", "False"])
    templates.import_ahead()
    for _ in range(2):
        assert said() == (True, ["True", "True"])


@pytest.mark.usefixtures("begun_anew")
@pytest.mark.parametrize(
    "spoils",
    [
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()",
        "kept = open('/dev/null')",
        "raise RuntimeError('not here')",
    ],
)
def test_what_must_not_be_imported_ahead_is_left_to_workers(
    said: Callable[[], tuple[bool, list[str]]], spoils: str, tmp_path: Path
) -> None:
    (tmp_path / "ahead_of_it.py").write_text(spoils)
    templates.import_ahead(("ahead_of_it",))
    assert said() == (False, ["False", "False"])
    assert said() == (True, ["False", "False"])


@pytest.mark.usefixtures("begun_anew")
@pytest.mark.parametrize("visible", ["", "0"])
def test_what_asks_for_a_gpu_when_it_is_imported_ahead_begins_no_cuda(
    program: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, visible: str
) -> None:
    """Inductor does. To look for one leaves descriptors of the driver, and workers were started the
    long way, after all of that."""
    monkeypatch.setattr(templates, "_ahead", ())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ahead_of_it.py").write_text(ASKS)
    (tmp_path / "says.py").write_text(SAYS_OF_GPUS)
    templates.import_ahead(("ahead_of_it",))
    environment = {
        **program.environment,
        "PYTHONPATH": str(tmp_path),
        "CUDA_VISIBLE_DEVICES": visible,
    }
    forked = templates.fork("says", [], environment)
    with forked.stdin, forked.stdout, forked.stderr:
        there, really = forked.stdout.read().decode().split()
    assert (there, really) == (str(bool(visible)), "False")


def test_what_pushes_the_caches_out_is_the_templates(worker: WorkerProcess) -> None:
    """To fill it took longer than the fork: a worker reads it where the template has it."""
    assert isinstance(worker._process, ForkedProcess)
    [*_, answer] = worker.ask(Calibrate(), 60)
    assert isinstance(answer, Calibrated)
    mapped = psutil.Process(worker.pid).memory_maps(grouped=False)
    size = timer.flush().nbytes
    shared = [m for m in mapped if not m.path.startswith("/") and m.rss >= size]
    assert any(m.private_dirty + m.private_clean < size // 100 for m in shared), shared

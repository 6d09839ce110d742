"""Workers by fork: whose children they are, and what happens where none can be forked."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from nsabench.model.description import Described
from nsabench.running import process_tree
from nsabench.running.process import Process
from nsabench.running.process_tree import ForkedProcess, Program
from nsabench.worker.protocol import Describe
from tests import forked


@pytest.fixture
def begun_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Templates are started, and not forked from what has imported torch for all tests."""
    monkeypatch.setattr(process_tree, "start_template", forked.started)
    monkeypatch.setenv("BEGUN", "anew")


@pytest.fixture
def program(request: pytest.FixtureRequest) -> Program:
    if "begun_anew" in request.fixturenames:
        request.getfixturevalue("begun_anew")
    return Program("nsabench.worker", ["--device", "cpu"], process_tree.make_environment("cpu"))


@pytest.fixture
def worker(program: Program) -> Iterator[Process]:
    process = Process(program)
    yield process
    process.stop()


@pytest.mark.usefixtures("begun_anew")
def test_a_worker_is_forked_and_is_a_child_of_this_process(
    worker: Process, program: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    template = process_tree.template_pids()
    monkeypatch.chdir(tmp_path)
    other = Process(program)
    assert process_tree.template_pids() == template  # both came from one
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
def test_a_template_that_was_killed_is_replaced(worker: Process, program: Program) -> None:
    gone = process_tree.template_pids()
    for pid in gone:
        os.kill(pid, signal.SIGKILL)
    other = Process(program)
    assert isinstance(other._process, ForkedProcess)
    assert process_tree.template_pids() - gone
    other.stop()


def test_without_a_template_a_worker_is_started_the_long_way(
    program: Program, tmp_path: Path
) -> None:
    (tmp_path / "triton.py").write_text("raise ImportError('not here')")
    environment = {**program.environment, "PYTHONPATH": str(tmp_path)}
    process = Process(replace(program, environment=environment))
    assert isinstance(process._process, subprocess.Popen)
    process.stop()


def test_templates_of_many_environments_are_not_all_kept(program: Program) -> None:
    before = process_tree.template_pids()
    for number in range(process_tree.MOST_TEMPLATES + 1):
        environment = {**program.environment, "NUMBER": str(number)}
        Process(replace(program, environment=environment)).stop()
    assert len(process_tree.template_pids()) == process_tree.MOST_TEMPLATES
    assert not any(psutil.pid_exists(pid) for pid in before)

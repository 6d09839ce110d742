"""Run the command line in a process of its own."""

import os
import subprocess

import pytest

from tests import forked
from tests.shared_runs import TINY as TINY


def command(*arguments):
    """Return a command line that runs a forked nsabench. The parent of nsabench is not its
    caller."""
    return [str(forked.shim()), *map(str, arguments)]


def start(folder, *arguments, stdout=subprocess.DEVNULL):
    """Start a forked nsabench in a folder, with its standard error in a pipe."""
    words, pipe = command(*arguments), subprocess.PIPE
    return subprocess.Popen(words, cwd=folder, stdout=stdout, stderr=pipe, text=True)


def complete(done):
    """Check that a command measured to its end. Exit status 1 is allowed, because a busy machine
    can distort a time so that a control is missed."""
    assert done.returncode in (0, 1), done.stdout + done.stderr
    assert "controls: " in done.stdout, done.stdout + done.stderr


@pytest.fixture
def nsabench(tmp_path):
    """Return a function that runs nsabench in an empty folder and fails if standard error holds a
    traceback."""

    def run(*arguments, **environment):
        words = [str(argument) for argument in arguments]
        done = forked.run(words, tmp_path, {**os.environ, **environment}, timeout_s=280)
        assert "Traceback" not in done.stderr, done.stderr
        return done

    return run


@pytest.fixture
def tiny(tmp_path):
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY)
    return path

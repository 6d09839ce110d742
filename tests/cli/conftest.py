"""The command line as a user runs it: a process of its own."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import forked

Nsabench = Callable[..., "subprocess.CompletedProcess[str]"]

TINY = """
op: selection_rows
axes: {N: 4, H: 2, D: 32, L: [8, 16, 24]}
implementations: {only: [sdpa_gqa, bmm_softmax, rows_group]}
timing:
  warmup_s: 0.005
  stopping: {kind: fixed_count, rounds: 12}
"""


def command(*arguments: object) -> list[str]:
    """Return a command for tests that do not depend on the parent of its process."""
    return [str(forked.shim()), *map(str, arguments)]


def complete(done: subprocess.CompletedProcess[str]) -> None:
    """Check that a command measured to its end. Exit status 1 is allowed, because a busy machine
    can distort a time so that a control is missed. Other tests check the times."""
    assert done.returncode in (0, 1), done.stdout + done.stderr
    assert "controls: " in done.stdout, done.stdout + done.stderr


@pytest.fixture
def nsabench(tmp_path: Path) -> Nsabench:
    """Run nsabench in an empty folder; standard error must never hold a traceback."""

    def run(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
        words = [str(argument) for argument in arguments]
        done = forked.run(words, tmp_path, {**os.environ, **environment}, timeout_s=280)
        assert "Traceback" not in done.stderr, done.stderr
        return done

    return run


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY)
    return path

"""Run commands of nsabench in the process of a test."""

from dataclasses import dataclass

import click
import pytest
from click.testing import CliRunner

from nsabench.cli import group
from nsabench.errors import NsabenchError


@dataclass(frozen=True)
class Invoked:
    """What a command printed, and how it ended. stderr: with the error and its remedy."""

    returncode: int
    stdout: str
    stderr: str
    error: NsabenchError | None


def invoke(*words, **environment):
    """Run `nsabench WORDS` in the current folder, with `environment` added to the variables.

    Raises any error of the command except those that nsabench prints without a traceback.
    """
    words = [str(word) for word in words]
    done = CliRunner().invoke(group, words, env=environment, standalone_mode=False)
    error, stderr = done.exception, done.stderr
    code = done.return_value if isinstance(done.return_value, int) else 0
    if isinstance(error, NsabenchError | click.ClickException):
        code = error.exit_code
        stderr += f"nsabench: {error}\n  remedy: {getattr(error, 'remedy', '')}\n"
    elif error is not None:
        raise error
    return Invoked(code, done.stdout, stderr, error if isinstance(error, NsabenchError) else None)


@pytest.fixture
def nsabench(tmp_path, monkeypatch):
    """Change to an empty folder and return `invoke`."""
    monkeypatch.chdir(tmp_path)
    return invoke

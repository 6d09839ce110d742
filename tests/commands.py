"""Commands of nsabench within the process of a test, where no process of its own matters."""

from dataclasses import dataclass

from click.testing import CliRunner

from nsabench.cli import group
from nsabench.errors import NsabenchError


@dataclass(frozen=True)
class Invoked:
    """What a command printed, and how it ended. error: what a user sees in one sentence."""

    code: int
    stdout: str
    stderr: str
    error: NsabenchError | None


def invoke(*words, **environment):
    """Run `nsabench WORDS` in the current folder, with these variables added.

    Raises any error of the command that is not a `NsabenchError`.
    """
    done = CliRunner().invoke(group, [str(word) for word in words], env=environment)
    error = done.exception if isinstance(done.exception, NsabenchError) else None
    if error is None and done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    code = error.exit_code if error else done.exit_code
    return Invoked(code, done.stdout, done.stderr, error)

"""Run the command line. Each module without a leading `_` holds its command as `command`."""

import io
import os
import shlex
import signal
import sys

import click

from nsabench import limits
from nsabench.cli._help import Commands
from nsabench.cli._say import open_closed_streams, outlive_readers, say
from nsabench.errors import EnvironmentRefused, Interrupted, NsabenchError, VerificationFailed
from nsabench.files import writing
from nsabench.model.version import __version__
from nsabench.text import shown

INTERRUPTED = 130
# These commands read files from others, so their memory is limited.
READING = {"archive", "audit", "compare", "merge", "report", "site", "threshold", "verify"}
# These commands go on when the reader of their output ends, as `head` does.
MEASURING = {"all", "run", "versions"}


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
@click.option("--debug", is_flag=True, help="Show a traceback with an error.")
@click.pass_context
def group(context: click.Context, debug: bool) -> None:
    """Decide whether a GPU kernel is right and faster than PyTorch, and from which length.

    Start with `nsabench check FILE.py`, on a file of yours or of `nsabench init`.

    Example: nsabench all selection_rows --kernels mine.py
    """
    context.obj = debug


def main() -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    open_closed_streams()
    command = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    if command:
        from nsabench.signing.secrecy import seclude  # its libraries would slow down --help

        seclude()  # hide secrets before any process is started
    if command in READING:
        from nsabench.reading import limit_memory

        limit_memory()
    elif command in MEASURING:
        outlive_readers()
    try:
        with writing():
            code = group.main(standalone_mode=False)
    except (click.exceptions.Abort, KeyboardInterrupt) as stopped:
        sys.exit(_interrupted(stopped.__cause__ or stopped))
    except click.ClickException as error:
        message = io.StringIO()
        error.show(message)
        say(message.getvalue(), err=True, nl=False)
        sys.exit(error.exit_code)
    except MemoryError:
        most = limits.MEMORY // limits.GIB
        say(f"nsabench: what was read takes more than {most} GiB of memory", err=True)
        say("  remedy: copy the files again from the machine that made them.", err=True)
        sys.exit(VerificationFailed.exit_code)
    except FileNotFoundError as error:
        if "temporary" not in str(error) or "--debug" in sys.argv:
            raise
        say("nsabench: there is no folder for temporary files", err=True)
        say("  remedy: set TMPDIR; start a container with `--tmpfs /tmp:rw,exec`.", err=True)
        sys.exit(EnvironmentRefused.exit_code)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        if "--debug" in sys.argv:
            raise
        sys.exit(_explained(error))
    sys.exit(code if isinstance(code, int) else 0)


def _explained(error: Exception) -> int:
    if not isinstance(error, NsabenchError):
        say(f"nsabench: an error in nsabench itself: {type(error).__name__}: {error}", err=True)
        say("  remedy: run it with `nsabench --debug ...` and report what it prints.", err=True)
        return 1
    say(f"nsabench: {shown(error)}", err=True)
    if error.remedy:
        say(f"  remedy: {shown(error.remedy)}", err=True)
    if error.folder:
        say(f"  what was measured is kept: go on with --resume {error.folder}", err=True)
    return error.exit_code


def _interrupted(error: BaseException) -> int:
    goes_on = f"; {error}" if str(error) else ""
    if isinstance(error, Interrupted):
        again = f"nsabench {error.command} --resume {shlex.quote(error.folder)}"
        goes_on = f"; the run goes on with `{again}`"
    print(f"nsabench: interrupted{goes_on}.", file=sys.stderr)  # noqa: T201
    return INTERRUPTED

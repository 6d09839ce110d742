"""Options that several commands share."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import click

from nsabench.errors import UsageError
from nsabench.model.plan import WHOLE
from nsabench.model.vocabulary import MARGIN

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

PATH = click.Path(path_type=Path)
FILE = click.Path(path_type=Path, dir_okay=False)
FOLDER = click.Path(path_type=Path, file_okay=False)
EXISTING_FOLDER = click.Path(path_type=Path, file_okay=False, exists=True)


def require_python(path: Path) -> Path:
    """Return the path. Raises `UsageError` if it cannot be the path of a Python file."""
    if path.suffix != ".py" or path.is_dir():
        raise UsageError(
            f"{path} is not a Python file",
            "give a Python file, as `nsabench init OP FILE.py` writes; a matrix is measured by "
            "`nsabench all FILE.yaml`.",
        )
    return path


class PythonFile(click.Path):
    def convert(self, value: Any, *where: Any) -> Path:
        return require_python(Path(value))


PYTHON = PythonFile()


def _refuse_kernels(
    context: click.Context, parameter: click.Parameter, value: tuple[str, ...]
) -> tuple[str, ...]:
    for name in value:
        if name.endswith(".py"):
            raise UsageError(f"{name} is not a matrix", f"give it as --kernels {name}.")
    return value


matrices = click.argument("matrices", nargs=-1, metavar="[MATRIX]...", callback=_refuse_kernels)
device = click.option(
    "--device",
    type=click.Choice(["auto", "cuda", "cpu"]),
    default="auto",
    show_default=True,
    help="Where to measure. auto: on the GPU if there is one.",
)
kernels = click.option(
    "--kernels",
    type=PYTHON,
    metavar="FILE.py",
    help="Your file with @nsabench.implementation functions.",
)
shard = click.option(
    "--shard",
    default=WHOLE,
    metavar="i/n",
    help="The i-th of n parts of the plan. Cases that differ only in length stay together.",
)
margin = click.option(
    "--margin",
    type=click.FloatRange(min=1),
    default=MARGIN,
    show_default=True,
    metavar="RATIO",
    help="Speed-up that makes a kernel worth using. Ratios close to it are measured again.",
)
timing = click.option(
    "--timing",
    type=click.Choice(["auto", "brief", "full"]),
    default="auto",
    show_default=True,
    help="How long to time. brief: a few calls, which decide nothing. auto: brief on a CPU.",
)
no_sandbox = click.option(
    "--no-sandbox",
    is_flag=True,
    help="Let kernels read and write all files that you can. The run records it.",
)
out = click.option(
    "--out", type=FOLDER, metavar="DIR", help="Folder of the run. Default: results/RUN_ID."
)
resume = click.option(
    "--resume",
    type=FOLDER,
    metavar="DIR",
    help="Folder of a run to continue. With a matrix or other options, a run is started there if "
    "there is none.",
)
trusted = click.option(
    "--key",
    "public",
    multiple=True,
    type=FILE,
    metavar="FILE.pub",
    help="Public key that you trust. May be given again. See also NSABENCH_TRUSTED_KEYS.",
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON for a program to read.")
where = click.option(
    "--where",
    multiple=True,
    metavar="CONDITION",
    help="Only cases that meet the condition, such as 'D=128 and L>=512'. May be given again.",
)
only = click.option(
    "-k",
    "--only",
    multiple=True,
    metavar="PATTERN",
    help="Only candidates with this name, such as `mine` or `rows_*`. May be given again.",
)
verbose = click.option(
    "-v", "--verbose", is_flag=True, help="Show every baseline, control and finding."
)
wide = click.option("--wide", is_flag=True, help="Show every column, in 160 characters.")
junit = click.option(
    "--junit", type=FILE, metavar="FILE.xml", help="JUnit XML to write, for CI systems."
)


def load_op(path: Path | None) -> Path | None:
    if path is None:
        return None
    from nsabench import ops  # its imports would slow down --help

    ops.load_file(require_python(path).absolute())
    return path.absolute()


def _load_op(context: click.Context, parameter: click.Parameter, value: Path | None) -> Path | None:
    return load_op(value)


_own_op = functools.partial(
    click.option,
    "--ops",
    "ops_file",
    type=PYTHON,
    metavar="FILE.py",
    help="File that defines an op of your own as OP.",
)
ops_file = _own_op()
path_of_op = _own_op(type=PATH)  # `check` itself refuses or loads the file
loaded_ops = _own_op(callback=_load_op)
ops_of_the_run = _own_op(
    expose_value=False,
    callback=_load_op,
    help="File with the op of the run, if it is an op of your own.",
)


@dataclass(frozen=True)
class Measuring:
    matrices: tuple[str, ...] = ()
    device: str = "auto"
    out: Path | None = None
    resume: Path | None = None
    kernels: Path | None = None
    ops_file: Path | None = None
    shard: str = WHOLE
    margin: float = MARGIN
    where: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    no_sandbox: bool = False
    timing: str = "auto"
    verbose: bool = False
    wide: bool = False
    as_json: bool = False
    junit: Path | None = None


def asked_again(asked: Measuring) -> list[str]:
    """Return arguments for the same measurement, without --out, --resume and --shard."""
    words = [*asked.matrices, "--device", asked.device, "--margin", repr(asked.margin)]
    words += ["--timing", asked.timing]
    texts = {"--kernels": asked.kernels, "--ops": asked.ops_file}
    flags = {"--no-sandbox": asked.no_sandbox, "--verbose": asked.verbose}
    words += [word for name, text in texts.items() if text for word in (name, str(text))]
    for name, values in (("--where", asked.where), ("--only", asked.only)):
        words += [word for value in values for word in (name, value)]
    return [*words, *(name for name, flag in flags.items() if flag)]


PLAN = (no_sandbox, ops_file, kernels, only, where, margin, timing, device, matrices)
RUN = (junit, as_json, wide, verbose, shard, resume, out)


def measuring(*options: Decorator) -> Decorator:
    """Add options to a command, which receives them as one `Measuring`.

    They are added in this order, so `--help` shows the last one first.
    """
    names = {field.name for field in fields(Measuring)}

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def called(**given: Any) -> Any:
            asked = {name: given.pop(name) for name in names & given.keys()}
            return command(Measuring(**asked), **given)

        decorated: Callable[..., Any] = called
        for option in options:
            decorated = option(decorated)
        return decorated

    return add


def absolute(asked: Measuring) -> Measuring:
    files = tuple(str(Path(m).absolute()) if Path(m).is_file() else m for m in asked.matrices)
    return replace(
        asked,
        matrices=files,
        kernels=asked.kernels.absolute() if asked.kernels else None,
        ops_file=asked.ops_file.absolute() if asked.ops_file else None,
    )

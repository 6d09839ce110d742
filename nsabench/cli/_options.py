"""Options that several commands share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import click

from nsabench import ops
from nsabench.model.vocabulary import MARGIN
from nsabench.planning.shards import ALL

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

PATH = click.Path(path_type=Path)
FILE = click.Path(path_type=Path, dir_okay=False)
FOLDER = click.Path(path_type=Path, file_okay=False)
EXISTING_FILE = click.Path(path_type=Path, dir_okay=False, exists=True)
EXISTING_FOLDER = click.Path(path_type=Path, file_okay=False, exists=True)

matrices = click.argument("matrices", nargs=-1, metavar="[MATRIX]...")
device = click.option(
    "--device",
    type=click.Choice(["auto", "cuda", "cpu"]),
    default="auto",
    show_default=True,
    help="Where to measure. auto: on the GPU if there is one.",
)
kernels = click.option(
    "--kernels",
    type=PATH,
    metavar="FILE.py",
    help="A file of your own with @nsabench.implementation functions.",
)
shard = click.option(
    "--shard",
    default=ALL,
    metavar="i/n",
    help="Take the i-th of n parts of the plan; cases that differ only in length stay together.",
)
margin = click.option(
    "--margin",
    type=click.FloatRange(min=1),
    default=MARGIN,
    show_default=True,
    metavar="RATIO",
    help="How many times as fast is worth it: what is decided, and which verdicts are confirmed.",
)
no_sandbox = click.option(
    "--no-sandbox",
    is_flag=True,
    help="Let kernels read and write whatever this user may; the run says so.",
)
out = click.option(
    "--out", type=FOLDER, metavar="DIR", help="Folder of the run. Default: results/RUN_ID."
)
resume = click.option(
    "--resume",
    type=FOLDER,
    metavar="DIR",
    help="Continue the run in this folder. With a matrix or other options, start it there if it "
    "does not exist.",
)
trusted = click.option(
    "--key",
    "public",
    multiple=True,
    type=FILE,
    metavar="FILE.pub",
    help="A public key that you trust; may be given again. See also NSABENCH_TRUSTED_KEYS.",
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON for a program to read.")
where = click.option(
    "--where",
    multiple=True,
    metavar="CONDITION",
    help="Only the cases for which it holds, such as 'D=128 and L>=512'. May be given again.",
)
only = click.option(
    "-k",
    "--only",
    multiple=True,
    metavar="PATTERN",
    help="Only candidates of such a name, such as `mine` or `rows_*`. May be given again.",
)
tag = click.option(
    "--tag", default="", metavar="NAME", help="A word of your own in the name of the run's folder."
)
verbose = click.option(
    "-v", "--verbose", is_flag=True, help="Every baseline, control and finding, a line each."
)
junit = click.option(
    "--junit",
    type=FILE,
    metavar="FILE.xml",
    help="Write what passed and failed as JUnit XML, which CI systems show.",
)


def _load_op(context: click.Context, parameter: click.Parameter, value: Path | None) -> Path | None:
    if value is None:
        return None
    ops.load_file(value.absolute())
    return value.absolute()


_own_op = functools.partial(
    click.option,
    "--ops",
    "ops_file",
    type=PATH,
    metavar="FILE.py",
    help="A file of your own that holds an op, under the name OP.",
)
ops_file = _own_op()
loaded_ops = _own_op(callback=_load_op)
# For a command that reads runs: all that it needs is that the op is there.
ops_of_the_run = click.option(
    "--ops",
    type=PATH,
    metavar="FILE.py",
    expose_value=False,
    callback=_load_op,
    help="The file with the op that the run was made with, if it was one of your own.",
)


@dataclass(frozen=True)
class Measuring:
    matrices: tuple[str, ...] = ()
    device: str = "auto"
    out: Path | None = None
    resume: Path | None = None
    kernels: Path | None = None
    ops_file: Path | None = None
    shard: str = ALL
    margin: float = MARGIN
    where: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    tag: str = ""
    no_sandbox: bool = False
    verbose: bool = False
    as_json: bool = False
    junit: Path | None = None


def asked_again(asked: Measuring) -> list[str]:
    """Return the words that ask for the same measurement, without --out, --resume and --shard."""
    words = [*asked.matrices, "--device", asked.device, "--margin", repr(asked.margin)]
    texts = {"--kernels": asked.kernels, "--ops": asked.ops_file, "--tag": asked.tag}
    flags = {"--no-sandbox": asked.no_sandbox, "--verbose": asked.verbose}
    words += [word for name, text in texts.items() if text for word in (name, str(text))]
    for name, values in (("--where", asked.where), ("--only", asked.only)):
        words += [word for value in values for word in (name, value)]
    return [*words, *(name for name, flag in flags.items() if flag)]


# Options of a plan.
PLAN = (tag, no_sandbox, ops_file, kernels, only, where, margin, device, matrices)
RUN = (junit, as_json, verbose, shard, resume, out)


def measuring(*options: Decorator) -> Decorator:
    """Add options of a command that measures. The command receives them as one `Measuring`."""
    names = {field.name for field in fields(Measuring)}

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def called(**given: Any) -> Any:
            asked = {name: given.pop(name) for name in names & given.keys()}
            return command(Measuring(**asked), **given)

        return all_of(*options)(called)

    return add


def all_of(*options: Decorator) -> Decorator:
    """Add several options. The last one is the first that `--help` shows."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in options:
            command = option(command)
        return command

    return add


def absolute(asked: Measuring) -> Measuring:
    files = tuple(str(Path(m).absolute()) if Path(m).is_file() else m for m in asked.matrices)
    return replace(
        asked,
        matrices=files,
        kernels=asked.kernels.absolute() if asked.kernels else None,
        ops_file=asked.ops_file.absolute() if asked.ops_file else None,
    )

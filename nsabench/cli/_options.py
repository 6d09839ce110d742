"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from nsabench import ops
from nsabench.model.vocabulary import MARGIN

F = TypeVar("F", bound=Callable[..., Any])

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
    type=click.Path(path_type=Path),
    metavar="FILE.py",
    help="A file of your own with @nsabench.implementation functions.",
)
ops_file = click.option(
    "--ops",
    "ops_file",
    type=click.Path(path_type=Path),
    metavar="FILE.py",
    help="A file of your own that holds an op, under the name OP.",
)
shard = click.option(
    "--shard",
    default="1/1",
    metavar="i/n",
    help="Take the i-th of n parts of the plan; cases that differ only in length stay together.",
)
margin = click.option(
    "--margin",
    type=click.FloatRange(min=1),
    default=MARGIN,
    show_default=True,
    metavar="RATIO",
    help="How many times as fast is worth it: what is decided, and where a second look is taken.",
)
no_sandbox = click.option(
    "--no-sandbox",
    is_flag=True,
    help="Let kernels read and write whatever this user may; the run says so.",
)
out = click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Folder of the run. Default: results/RUN_ID.",
)
resume = click.option(
    "--resume",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="RUN",
    help="Go on with an interrupted run; what is journaled is not run again.",
)
quick = click.option("--quick", is_flag=True, help="The small matrix `quick` instead of all.")
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON for a program to read.")


def _load_op(context: click.Context, parameter: click.Parameter, value: Path | None) -> None:
    if value is not None:
        ops.load_file(value)


# Of a command that reads runs: all that it needs is that the op is there.
ops_of_the_run = click.option(
    "--ops",
    type=click.Path(path_type=Path),
    metavar="FILE.py",
    expose_value=False,
    callback=_load_op,
    help="The file with the op that the run was made with, if it was one of your own.",
)


def measuring(command: F) -> F:
    """The options of a command that measures."""
    own = (no_sandbox, ops_file, kernels, shard, margin, resume, out, quick, device, matrices)
    for option in own:
        command = option(command)
    return command

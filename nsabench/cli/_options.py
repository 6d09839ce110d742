"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

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
shard = click.option(
    "--shard", default="1/1", metavar="i/n", help="Take the i-th of n parts of the plan."
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


def measuring(command: F) -> F:
    """The options of a command that measures."""
    for option in (kernels, shard, resume, out, quick, device, matrices):
        command = option(command)
    return command

"""nsabench all"""

from __future__ import annotations

import click

from nsabench.cli import _options
from nsabench.cli._devices import measure_on
from nsabench.cli._measure import measure, show
from nsabench.cli._options import Measuring
from nsabench.conclusion import finish


@click.command("all")
@click.option(
    "--devices",
    metavar="0,1|all",
    help="Measure one shard on each of these GPUs at the same time, and merge them into one run.",
)
@_options.measuring(*_options.RUN, *_options.PLAN)
def command(asked: Measuring, devices: str | None) -> int:
    """Check the machine, measure the matrices, decide, and report.

    Without a MATRIX: all that ship on a GPU, the quick one on a CPU.

    Example: nsabench all matrices/selection_rows.yaml --kernels mine.py
    """
    if devices is not None:
        code = measure_on(asked, devices)
        if code is not None:
            return code
    finished = measure(asked, fit=True)
    return show(finished, asked, finish(finished))

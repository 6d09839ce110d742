"""nsabench all"""

from __future__ import annotations

import click

from nsabench.assessment.failures import failures
from nsabench.cli import _options
from nsabench.cli._devices import measure_on
from nsabench.cli._measure import measure
from nsabench.cli._options import Measuring
from nsabench.cli._say import say
from nsabench.conclusion import finish
from nsabench.output import terminal


@click.command("all")
@click.option(
    "--devices",
    metavar="0,1|all",
    help="A shard on each of these GPUs of this host, all at once, and one merged run out of them.",
)
@_options.measuring
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
    signed = finish(finished)
    terminal.print_summary(finished, terminal.console(), verbose=asked.verbose)
    say(signed)
    return 1 if failures(finished.results) else 0

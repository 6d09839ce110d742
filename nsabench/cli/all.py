"""nsabench all"""

from __future__ import annotations

from pathlib import Path

import click

from nsabench.assessment.failures import failures
from nsabench.cli import _options
from nsabench.cli._measure import measure
from nsabench.cli._say import say
from nsabench.conclusion import finish
from nsabench.output import terminal


@click.command("all")
@_options.measuring
def command(
    matrices: tuple[str, ...],
    device: str,
    quick: bool,
    out: Path | None,
    resume: Path | None,
    kernels: Path | None,
    ops_file: Path | None,
    shard: str,
    margin: float,
    no_sandbox: bool,
) -> int:
    """Check the machine, measure the matrices, decide, and report.

    Without a MATRIX: all that ship on a GPU, the quick one on a CPU.

    Example: nsabench all matrices/selection_rows.yaml --kernels mine.py
    """
    given = (matrices, device, quick, out, resume, kernels, ops_file, shard, margin, no_sandbox)
    finished = measure(*given, fit=True)
    signed = finish(finished)
    terminal.print_summary(finished, terminal.console())
    say(signed)
    return 1 if failures(finished.results) else 0

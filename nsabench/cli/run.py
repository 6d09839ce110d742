"""nsabench run"""

from __future__ import annotations

from pathlib import Path

import click

from nsabench.assessment.failures import failures
from nsabench.cli import _options
from nsabench.cli._measure import measure
from nsabench.output import terminal


@click.command("run")
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
    """Parity and timing only: without looking at the machine first, and nothing is decided,
    reported or signed.

    Example: nsabench run quick --device cpu
    """
    given = (matrices, device, quick, out, resume, kernels, ops_file, shard, margin, no_sandbox)
    finished = measure(*given, fit=False)
    terminal.print_summary(finished, terminal.console())
    return 1 if failures(finished.results) else 0

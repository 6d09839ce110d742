"""nsabench run"""

from __future__ import annotations

import click

from nsabench.assessment.failures import failures
from nsabench.cli import _options
from nsabench.cli._measure import measure
from nsabench.cli._options import Measuring
from nsabench.output import events, terminal


@click.command("run")
@_options.measuring
def command(asked: Measuring) -> int:
    """Parity and timing only: without looking at the machine first, and nothing is decided,
    reported or signed.

    Example: nsabench run quick --device cpu
    """
    finished = measure(asked, fit=False)
    if asked.as_json:
        events.finished(finished)
    else:
        terminal.print_summary(finished, terminal.console(), verbose=asked.verbose)
    return 1 if failures(finished.results) else 0

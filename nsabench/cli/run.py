"""nsabench run"""

from __future__ import annotations

import click

from nsabench.assessment.failures import failures
from nsabench.cli import _options
from nsabench.cli._ci import outside_the_run, tell
from nsabench.cli._measure import measure
from nsabench.cli._options import Measuring
from nsabench.output import ci, events, terminal


@click.command("run")
@_options.measuring
def command(asked: Measuring) -> int:
    """Parity and timing only: without looking at the machine first, and nothing is decided,
    reported or signed.

    Example: nsabench run quick --device cpu
    """
    outside_the_run(asked.junit, asked.out or asked.resume)
    finished = measure(asked, fit=False)
    if asked.as_json:
        events.finished(finished)
    else:
        terminal.print_summary(finished, terminal.console(), verbose=asked.verbose)
    tell(ci.of_run(finished.results), asked.junit, finished.plan.run_id, finished.plan.kernels)
    return 1 if failures(finished.results) else 0

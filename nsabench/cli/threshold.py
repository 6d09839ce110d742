from pathlib import Path

import click

from nsabench.cli import _help, _options
from nsabench.cli._say import say, say_json
from nsabench.cli._trust import admit
from nsabench.errors import UsageError
from nsabench.model.vocabulary import Role
from nsabench.planning.narrow import Narrowed, matches_any
from nsabench.verdicts import break_even, threshold, thresholds_yaml
from nsabench.verdicts.break_even import BreakEven
from nsabench.verdicts.threshold import Decision
from nsabench.verdicts.thresholds_yaml import as_data


@_help.command("threshold")
@click.argument("runs", nargs=-1, required=True, type=_options.EXISTING_FOLDER)
@click.option(
    "--margin",
    type=click.FloatRange(min=1),
    metavar="RATIO",
    help="Speed-up that makes a kernel worth using. Default: that of each run.",
)
@_options.where
@_options.only
@click.option("--op", metavar="NAME", help="Op to decide for.")
@_options.ops_of_the_run
@_options.as_json
def command(
    runs: tuple[Path, ...],
    margin: float | None,
    where: tuple[str, ...],
    only: tuple[str, ...],
    op: str | None,
    as_json: bool,
) -> None:
    """Find the length from which to use a kernel.

    It is the smallest tested length from which every tested case is faster than the best baseline.
    The lower end of each 95 % interval must reach the margin. If no length qualifies, the answer is
    null, with the reasons. Each run is decided on its own.

    If a run has alternatives (dense attention for NSA), the command also shows from which length
    the op is faster than the best of them.

    Example: nsabench threshold results/20260101T120000Z-a1b2c3 --margin 1.1
    """
    decisions: list[Decision] = []
    payments: list[BreakEven] = []
    is_backward = False
    for run in runs:
        admit(run)
        records, plan = threshold.read_run(run, Narrowed(where))
        records = [record for record in records if op in (None, record.op)]
        decisions += [
            decision
            for decision in threshold.decide_run(records, plan, margin)
            if matches_any(decision.candidate, only or ("*",))
        ]
        payments += break_even.decide(records)
        is_backward |= any(record.role is Role.CANDIDATE for record in records)
    if not decisions and not payments:
        if is_backward:
            raise UsageError(
                "thresholds are for the forward direction, and none of these cases is forward",
                "`nsabench report RUN` shows where a backward is faster.",
            )
        named = f" named {' or '.join(only)}" if only else ""
        raise UsageError(f"these runs have no candidate{named}", "give a run that has one.")
    if as_json:
        say_json(as_data(decisions, payments))
    else:
        for payment in payments:
            say(payment.summary)
        if decisions:
            say(thresholds_yaml.as_text(decisions))

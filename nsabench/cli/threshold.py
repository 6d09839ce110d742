"""nsabench threshold"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from nsabench.cli import _options
from nsabench.cli._say import say, say_json
from nsabench.cli._trust import admit
from nsabench.errors import UsageError
from nsabench.model.vocabulary import Regime, Role
from nsabench.planning.narrow import Narrowed
from nsabench.verdicts import break_even, threshold
from nsabench.verdicts.break_even import BreakEven
from nsabench.verdicts.threshold import Decision
from nsabench.verdicts.threshold.decide import SELECTED, per_gpu
from nsabench.verdicts.threshold.document import as_data
from nsabench.verdicts.threshold.patch import patch as make_patch


@click.command("threshold")
@click.argument("runs", nargs=-1, required=True, type=_options.EXISTING_FOLDER)
@click.option(
    "--margin",
    type=click.FloatRange(min=1),
    metavar="RATIO",
    help="Speed-up that makes a kernel worth using. Default: that of each run.",
)
@_options.where
@click.option("--op", metavar="NAME", help="Op to decide for.")
@click.option(
    "--patch",
    type=_options.EXISTING_FILE,
    metavar="FILE.yaml",
    help="File to print a patch for: it sets runtime.sel_triton_min_L, also by regime.",
)
@_options.ops_of_the_run
@_options.as_json
def command(
    runs: tuple[Path, ...],
    margin: float | None,
    where: tuple[str, ...],
    op: str | None,
    patch: Path | None,
    as_json: bool,
) -> None:
    """Find the length from which to use a kernel.

    It is the smallest tested length from which every tested case is faster than the best baseline.
    The lower end of each 95 % interval must reach the margin. If no length qualifies, the answer is
    null, with the reasons. Each run is decided on its own.

    If a run has alternatives (dense attention for NSA), the command also shows from which length
    the op is faster than the best of them.

    Example: nsabench threshold results/20260101T120000Z-a1b2c3 --patch config.yaml
    """
    decisions: list[Decision] = []
    payments: list[BreakEven] = []
    is_backward = False
    for run in runs:
        admit(run)
        records, plan = threshold.read_run(run, Narrowed(where))
        records = [record for record in records if op in (None, record.op)]
        decisions += threshold.decide_run(records, plan, margin)
        payments += break_even.decide(records)
        is_backward |= any(record.role is Role.CANDIDATE for record in records)
    if not decisions and not payments:
        if is_backward:
            raise UsageError(
                "a threshold switches a forward on, and all of these cases are backward",
                "`nsabench report RUN` shows where a backward is faster.",
            )
        raise UsageError("these runs have no candidate", "give a run that has one.")
    if as_json:
        say_json(as_data(decisions, payments))
    elif patch is not None:
        _patch(patch, decisions)
    else:
        if payments:
            say(break_even.as_markdown(payments))
        if decisions:
            say(threshold.as_markdown(decisions))


def _patch(file: Path, decisions: Sequence[Decision]) -> None:
    if not any(d.axis == SELECTED for d in decisions):
        raise UsageError(
            "none of these ops is decided by a selected length", "give a run of one that is."
        )
    by_regime = {regime: per_gpu(decisions, regime) for regime in Regime}
    lengths = {regime.value: _lengths(values) for regime, values in by_regime.items() if values}
    say(make_patch(file, _lengths(per_gpu(decisions)), lengths), nl=False)


def _lengths(by_gpu: dict[str, int | None]) -> dict[str, int | None] | int | None:
    """Return the lengths by GPU, the length of a single GPU, or None without a GPU."""
    return by_gpu if len(by_gpu) > 1 else next(iter(by_gpu.values()), None)

"""nsabench threshold"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import click

from nsabench.cli import _options
from nsabench.cli._say import say, say_json
from nsabench.cli._trust import admit
from nsabench.errors import UsageError
from nsabench.model.plan import Plan
from nsabench.model.vocabulary import Direction, Regime
from nsabench.planning.narrow import Narrowed
from nsabench.verdicts import break_even, threshold
from nsabench.verdicts.break_even import BreakEven
from nsabench.verdicts.threshold import Decision
from nsabench.verdicts.threshold.decide import SELECTED, per_gpu
from nsabench.verdicts.threshold.document import as_data, notes
from nsabench.verdicts.threshold.evidence import Evidence
from nsabench.verdicts.threshold.patch import patch as make_patch


@click.command("threshold")
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option(
    "--margin",
    type=click.FloatRange(min=1),
    metavar="RATIO",
    help="Speed-up that makes a kernel worth using. Default: that of the runs, else 1.2.",
)
@_options.where
@click.option("--op", metavar="NAME", help="Op to decide for.")
@click.option("--gpu", metavar="NAME", help='Device of CSV tables, such as "RTX 4090".')
@click.option(
    "--patch",
    type=_options.EXISTING_FILE,
    metavar="FILE.yaml",
    help="File to print a patch for: it sets runtime.sel_triton_min_L, also by regime.",
)
@click.option("--yaml", "as_yaml", is_flag=True, help="Print what thresholds.yaml holds.")
@_options.ops_of_the_run
@_options.as_json
def command(
    runs: tuple[Path, ...],
    margin: float | None,
    where: tuple[str, ...],
    op: str | None,
    gpu: str | None,
    patch: Path | None,
    as_yaml: bool,
    as_json: bool,
) -> None:
    """Find the length from which to use a kernel.

    It is the smallest tested length from which every tested case is faster than the best baseline.
    The lower end of each 95 % interval must reach the margin. If no length qualifies, the answer is
    null, with the reasons. RUNS are run folders, or CSV tables with --gpu.

    If a run has alternatives (dense attention for NSA), the command also shows from which length
    the op is faster than the best of them.

    Example: nsabench threshold results/20260101T120000Z-a1b2c3 --patch config.yaml
    """
    narrowed = Narrowed(where)
    evidence = [
        replace(found, tested=[t for t in found.tested if op in (None, t.record.op)])
        for found in _evidence(runs, gpu, narrowed)
    ]
    decisions = threshold.decide_all(evidence, margin or _margin_of(evidence))
    payments = [p for p in _payments(runs, narrowed) if op in (None, p.op)]
    if not decisions and not payments:
        if _are_backward(runs):
            raise UsageError(
                "a threshold switches a forward on, and all of these cases are backward",
                "`nsabench report RUN` shows where a backward is faster.",
            )
        raise UsageError("these runs have no candidate", "give a run that has one.")
    if as_json:
        say_json(as_data(decisions, payments))
    elif as_yaml:
        say(threshold.as_yaml(decisions, payments), nl=False)
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
    for note in notes(decisions):
        say(f"nsabench: {note}", err=True)
    lengths = {regime.value: _lengths(values) for regime, values in by_regime.items() if values}
    say(make_patch(file, _lengths(per_gpu(decisions)), lengths), nl=False)


def _lengths(by_gpu: dict[str, int | None]) -> dict[str, int | None] | int | None:
    """Return the lengths by GPU, the length of a single GPU, or None without a GPU."""
    return by_gpu if len(by_gpu) > 1 else next(iter(by_gpu.values()), None)


def _are_backward(paths: tuple[Path, ...]) -> bool:
    cases = [c.case for p in paths if p.is_dir() for c in Plan.read(p / "plan.json").cases]
    return bool(cases) and all(case.direction is not Direction.FORWARD for case in cases)


def _payments(paths: tuple[Path, ...], narrowed: Narrowed) -> list[BreakEven]:
    runs = (threshold.records_of(path, narrowed) for path in paths if path.is_dir())
    return [payment for records in runs for payment in break_even.decide(records)]


def _margin_of(evidence: list[Evidence]) -> float:
    margins = sorted({found.margin for found in evidence if found.margin is not None})
    if len(margins) > 1:
        raise UsageError(
            f"the runs were made for the margins {' and '.join(f'{m:g}' for m in margins)}",
            f"say which to decide for: --margin {margins[-1]:g}.",
        )
    return margins[0] if margins else threshold.MARGIN


def _evidence(paths: tuple[Path, ...], gpu: str | None, narrowed: Narrowed) -> Iterator[Evidence]:
    tables = [path for path in paths if path.is_file()]
    if tables and gpu is None:
        raise UsageError("a table does not say its device", 'name it: --gpu "RTX 4090".')
    if tables and gpu:
        yield threshold.of_tables(tables, gpu)
    for path in paths:
        if path.is_dir():
            admit(path)
            found = threshold.of_run(path, narrowed)
            plan = Plan.read(path / "plan.json")
            decisions = threshold.decide_all([found], plan.margin)
            otherwise = threshold.said_otherwise(path, plan, decisions)
            if otherwise and not narrowed.where:
                say(f"nsabench: {otherwise}", err=True)
            yield found

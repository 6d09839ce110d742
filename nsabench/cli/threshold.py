"""nsabench threshold"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import click

from nsabench.assessment import pays, threshold
from nsabench.assessment.pays import Payment
from nsabench.assessment.threshold.document import as_data, notes
from nsabench.assessment.threshold.evidence import Evidence
from nsabench.assessment.threshold.gate import SELECTED, per_gpu
from nsabench.assessment.threshold.patch import patch as make_patch
from nsabench.cli import _options
from nsabench.cli._say import say
from nsabench.cli._trust import admit
from nsabench.errors import UsageError
from nsabench.model.plan import Plan
from nsabench.model.vocabulary import Direction, Regime
from nsabench.planning.narrow import Narrowed


@click.command("threshold")
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option(
    "--margin",
    type=click.FloatRange(min=1),
    metavar="RATIO",
    help="How many times as fast is worth it. Default: what the runs were made for, else 1.2.",
)
@_options.where
@click.option("--op", metavar="NAME", help="Decide for this op alone.")
@click.option("--gpu", metavar="NAME", help='The device of CSV tables, such as "RTX 4090".')
@click.option(
    "--patch",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    metavar="FILE.yaml",
    help="Print a patch that sets runtime.sel_triton_min_L in this file, and the same by regime.",
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
    """From which selected length on should a candidate be switched on?

    The smallest tested L such that every tested case of that length or more is faster than the
    best baseline, by the margin at the lower end of its 95 % interval; null, with the reasons, when
    there is none. RUNS are run folders, or CSV tables with --gpu.

    Where a run has alternatives (dense attention beside NSA), it also says from which length on the
    op pays: is faster than the best of them.

    Example: nsabench threshold results/20260101T120000Z-a1b2c3 --patch config.yaml
    """
    evidence = [
        replace(one, tested=[t for t in one.tested if op in (None, t.op)])
        for one in _evidence(runs, gpu, Narrowed(where))
    ]
    decisions = threshold.decide_all(evidence, margin or _margin_of(evidence))
    payments = [p for p in _payments(runs, Narrowed(where)) if op in (None, p.op)]
    if not decisions and not payments:
        if _none_is_forward(runs):
            raise UsageError(
                "a threshold switches a forward on, and all of these cases are backward",
                "`nsabench report RUN` shows where a backward is faster.",
            )
        raise UsageError("there is no candidate to decide about", "give a run that has one.")
    if as_json:
        say(json.dumps(as_data(decisions, payments), indent=1))
    elif as_yaml:
        say(threshold.as_yaml(decisions, payments), nl=False)
    elif patch is not None:
        if not any(d.axis == SELECTED for d in decisions):
            raise UsageError(
                "none of these ops is decided by a selected length", "give a run of one that is."
            )
        by_regime = {
            regime.value: _lengths(values)
            for regime in Regime
            if (values := per_gpu(decisions, regime))
        }
        for note in notes(decisions):
            say(f"nsabench: {note}", err=True)
        say(make_patch(patch, _lengths(per_gpu(decisions)), by_regime), nl=False)
    else:
        if payments:
            say(pays.as_markdown(payments))
        if decisions:
            say(threshold.as_markdown(decisions))


def _none_is_forward(paths: tuple[Path, ...]) -> bool:
    cases = [c.case for p in paths if p.is_dir() for c in Plan.read(p / "plan.json").cases]
    return bool(cases) and all(case.direction is not Direction.FORWARD for case in cases)


def _lengths(by_gpu: dict[str, int | None]) -> dict[str, int | None] | int | None:
    """By GPU; of one, its own; measured on none: never."""
    return by_gpu if len(by_gpu) > 1 else next(iter(by_gpu.values()), None)


def _payments(paths: tuple[Path, ...], narrowed: Narrowed) -> list[Payment]:
    """Of each run: what one of them decides does not hang on another."""
    runs = (threshold.records_of(path, narrowed) for path in paths if path.is_dir())
    return [payment for records in runs for payment in pays.decide(records)]


def _margin_of(evidence: list[Evidence]) -> float:
    """The one that all runs were made for."""
    margins = sorted({one.margin for one in evidence if one.margin is not None})
    if len(margins) > 1:
        raise UsageError(
            f"the runs were made for the margins {' and '.join(f'{m:g}' for m in margins)}",
            f"say which to decide for: --margin {margins[-1]:g}.",
        )
    return margins[0] if margins else threshold.MARGIN


def _evidence(paths: tuple[Path, ...], gpu: str | None, narrowed: Narrowed) -> list[Evidence]:
    tables = [path for path in paths if path.is_file()]
    if tables and gpu is None:
        raise UsageError("a table does not say its device", 'name it: --gpu "RTX 4090".')
    evidence = [threshold.of_tables(tables, gpu)] if tables and gpu else []
    for path in paths:
        if path.is_dir():
            admit(path)
            evidence.append(threshold.of_run(path, narrowed))
            if not narrowed.where:
                _say_otherwise(path, evidence[-1])
    return evidence


def _say_otherwise(run: Path, evidence: Evidence) -> None:
    """On standard error: what is printed may be read by a program."""
    plan = Plan.read(run / "plan.json")
    otherwise = threshold.said_otherwise(run, plan, threshold.decide_all([evidence], plan.margin))
    if otherwise:
        say(f"nsabench: {otherwise}", err=True)

from pathlib import Path
from typing import Literal

import click

from nsabench.cli import _help, _options
from nsabench.cli._say import say, say_document
from nsabench.cli._trust import say_unsigned
from nsabench.evidence.manifest.statement import Trust
from nsabench.output import compare, terminal
from nsabench.output.compare import document
from nsabench.planning.narrow import Narrowed


@_help.command("compare")
@click.argument(
    "runs", nargs=-1, required=True, metavar="RUN RUN...", type=_options.EXISTING_FOLDER
)
@click.option(
    "--intersection",
    is_flag=True,
    help="Compare what runs with different plans have in common. Otherwise such runs are refused.",
)
@_options.where
@click.option(
    "--band",
    type=click.FloatRange(min=0, min_open=True),
    default=compare.BAND,
    show_default=True,
    metavar="SHARE",
    help="Largest difference that does not count. It grows if unchanged baselines differ by more "
    "between the runs.",
)
@click.option(
    "--fail-on",
    type=click.Choice(["regression", "status"]),
    help="Exit with 1 if something got worse. status: an implementation is no longer ok. "
    "regression: also if a candidate is slower.",
)
@click.option("--markdown", "as_markdown", is_flag=True, help="Print Markdown, for a pull request.")
@_options.ops_of_the_run
@_options.as_json
def command(
    runs: tuple[Path, ...],
    intersection: bool,
    where: tuple[str, ...],
    band: float,
    fail_on: Literal["regression", "status"] | None,
    as_markdown: bool,
    as_json: bool,
) -> int:
    """Compare runs with the first of them.

    The runs may differ in versions, GPUs or commits. They are joined by case and implementation.
    The comparison shows changed statuses, ratios of median times with 95 % intervals (above 1: the
    later run is faster), and each run's candidates against its baselines. Signed runs are verified
    first.

    Example: nsabench compare results/before results/after --fail-on regression
    """
    if as_json and as_markdown:
        raise click.UsageError("--json and --markdown exclude each other")
    sides = [side.narrowed(Narrowed(where)) for side in compare.read(runs)]
    for side in sides:
        if side.trust is Trust.UNSIGNED:
            say_unsigned(side.folder)
    comparison = compare.compare(sides, intersection=intersection, band=band)
    failed = list(comparison.failures(slower=fail_on == "regression")) if fail_on else []
    code = 1 if failed else 0
    if as_json:
        say_document(document.as_document(comparison, code))
    elif as_markdown:
        say(document.to_markdown(comparison), nl=False)
    else:
        terminal.console().print(document.render(comparison))
    for later, side in enumerate(comparison.later):
        doubtful = comparison.doubtful(later)
        if doubtful:
            cell, shift = doubtful[0]
            example = f"such as {cell.name}: {shift.why}"
            say(f"undecided: {len(doubtful)} cells in {side.name}, {example}", err=True)
    for sentence in failed:
        say(f"failed: {sentence}", err=True)
    return code

from pathlib import Path

import click

from nsabench import conclusion
from nsabench.cli import _help, _options
from nsabench.cli._say import say, say_json
from nsabench.cli._trust import admit
from nsabench.errors import UsageError
from nsabench.evidence.manifest import signed_around
from nsabench.output import report


@_help.command("report")
@click.argument("run", type=_options.FOLDER)
@click.option(
    "--out",
    type=_options.FOLDER,
    metavar="DIR",
    help="Folder to write to. Default: the run's folder; a signed run needs another.",
)
@click.option("--derive", is_flag=True, help="Also derive tables and thresholds from plan and log.")
@click.option(
    "--markdown", "as_markdown", is_flag=True, help="Print a summary for a pull request instead."
)
@_options.ops_of_the_run
@_options.as_json
def command(run: Path, out: Path | None, derive: bool, as_markdown: bool, as_json: bool) -> None:
    """Write the report of a run.

    Writes report.html and selection_report.md.

    Example: nsabench report results/20260101T120000Z-a1b2c3 --out again
    """
    admit(run, tables=False)
    facts = report.Facts.read(run)
    if as_markdown:
        say(report.summarise(facts), nl=False)
        return
    folder = out or run
    signed = signed_around(folder)
    if signed is not None:
        raise UsageError(
            f"{signed if out else run} is signed, and a new report would not be what was signed",
            "give --out another folder.",
        )
    folder.mkdir(parents=True, exist_ok=True)
    written = conclusion.derive(facts, folder) if derive else []
    written += [report.write_markdown(facts, folder), report.write_html(facts, folder)]
    if as_json:
        say_json({"valid": not facts.invalidating, "written": [str(path) for path in written]})
    else:
        for path in written:
            say(path)

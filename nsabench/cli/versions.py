from datetime import UTC, datetime
from pathlib import Path

import click

from nsabench import versions
from nsabench.cli import _help, _options
from nsabench.cli._options import Measuring, absolute, asked_again
from nsabench.cli._say import say
from nsabench.files import write_text
from nsabench.output import terminal
from nsabench.output.compare import compare, document, read


@_help.command("versions")
@click.option(
    "--triton",
    required=True,
    metavar="A,B,C|all",
    help="Versions to measure with. Missing versions are installed into the cache with a checked "
    "hash. All run with the installed torch.",
)
@click.option(
    "--tritons",
    "folder",
    type=_options.EXISTING_FOLDER,
    metavar="DIR",
    help="Folder of versions that `pip install --target DIR/VERSION` installed.",
)
@_options.measuring(_options.verbose, _options.out, *_options.PLAN)
def command(asked: Measuring, triton: str, folder: Path | None) -> int:
    """Measure under several versions of Triton.

    No containers are needed. Each version gets a signed run below --out. comparison.md and
    comparison.json compare the runs with the first. With the same --out again, finished runs are
    kept and an unfinished run is resumed.

    Exits with 1 if something failed in a run, and with 3 if a version has no run.

    Example: nsabench versions selection_rows --triton 3.1.0,3.6.0,3.9.0 --out results/versions
    """
    chosen = versions.parse(triton, folder)
    out = asked.out or Path("results") / f"versions-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    arguments = asked_again(absolute(asked))
    measured = versions.measure(arguments, out, chosen, lambda v, line: say(f"[{v}] {line}"))
    click.echo()
    for run in measured:
        belongs = f" (unpaired: this torch belongs with {run.triton.unpaired})"
        ended = "already measured" if run.exit_code is None else f"exit {run.exit_code}"
        say(
            f"Triton {run.triton.version}{belongs if run.triton.unpaired else ''}: {ended}, "
            f"{run.folder if run.finished else 'no run'}"
        )
    finished = [run.folder for run in measured if run.finished]
    if len(finished) > 1:
        # Some implementations do not run under all versions of Triton.
        comparison = compare(read(finished), intersection=True)
        terminal.console().print(document.render(comparison))
        data = document.as_document(comparison).model_dump_json(indent=1) + "\n"
        say(write_text(out / "comparison.md", document.to_markdown(comparison)))
        say(write_text(out / "comparison.json", data))
    if any(not run.finished for run in measured):
        return 3
    return 1 if any(run.exit_code for run in measured) else 0

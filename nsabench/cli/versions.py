"""nsabench versions"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import click

from nsabench.cli import _options
from nsabench.cli._options import Measuring, absolute, asked_again
from nsabench.cli._say import say
from nsabench.errors import UsageError
from nsabench.output import terminal
from nsabench.output.compare import Comparison, document, markdown, page, tables
from nsabench.output.report.files import replace as write
from nsabench.planning.shards import ALL
from nsabench.versions import between, question, tritons


@click.command("versions")
@click.option(
    "--triton",
    required=True,
    metavar="A,B,C|all",
    help="Versions to measure with, oldest first; each that is not installed is started beside the "
    "installed torch, from the cache that preflight fills, checked by its hash.",
)
@click.option(
    "--tritons",
    "folder",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="DIR",
    help="A folder that holds them, each as `pip install --target DIR/VERSION` makes it; nothing "
    "is installed.",
)
@_options.measuring
def command(asked: Measuring, triton: str, folder: Path | None) -> int:
    """Measure the same matrices under several Tritons on this host, without containers.

    One signed run a version, below --out, and what they make of the first of them: comparison.md,
    comparison.html and comparison.json. Given once more with the same --out, what is measured is
    kept, and a run that was begun goes on.

    Exits with 1 when something failed in a run, and with 3 when one gave no run.

    Example: nsabench versions selection_rows --triton 3.1.0,3.6.0,3.9.0 --out results/versions
    """
    if asked.resume is not None or asked.shard != ALL or asked.as_json or asked.junit is not None:
        raise UsageError(
            "versions takes no --resume, --shard, --json or --junit",
            "leave them away; the same --out goes on with what was begun.",
        )
    chosen = tritons.asked(triton, folder)
    out = asked.out or Path("results") / f"versions-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    asking = question.Question(tuple(asked_again(absolute(asked))), out)
    measured = question.answer_all(asking, chosen, lambda version, line: say(f"[{version}] {line}"))
    click.echo()
    for one in measured:
        belongs = f" (unpaired: this torch belongs with {one.triton.unpaired})"
        ended = "was there" if one.exit_code is None else f"exit {one.exit_code}"
        say(
            f"Triton {one.triton.version}{belongs if one.triton.unpaired else ''}: {ended}, "
            f"{one.folder if one.finished else 'no run'}"
        )
    comparison = between.comparison_of(measured)
    if comparison is not None:
        terminal.console().print(tables.render(comparison))
        for path in _write(comparison, out):
            say(str(path))
    if any(not one.finished for one in measured):
        return 3
    return 1 if any(one.exit_code for one in measured) else 0


def _write(comparison: Comparison, out: Path) -> list[Path]:
    """Beside the runs, none of which holds it."""
    data = json.dumps(document.as_data(comparison), indent=1) + "\n"
    return [
        write(out / "comparison.md", markdown.render(comparison)),
        write(out / "comparison.json", data),
        page.write(comparison, out / "comparison.html"),
    ]

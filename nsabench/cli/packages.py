"""nsabench packages"""

from __future__ import annotations

import json
from pathlib import Path

import click

from nsabench import packages
from nsabench.assessment.tables import read_records
from nsabench.cli import _options
from nsabench.cli._say import say
from nsabench.errors import UsageError
from nsabench.output import upstream
from nsabench.output.report.files import replace
from nsabench.packages import repository


@click.group("packages")
def command() -> None:
    """Public libraries that implementations call: which are here, and bringing those that are no
    package.

    Example: nsabench packages list
    """


@command.command("list")
@_options.as_json
def listing(as_json: bool) -> None:
    """Every library with an adapter: its version here, or how to get it, and its licence.

    Example: nsabench packages list --json
    """
    rows = [
        {
            "package": package.name,
            "version": package.version,
            "licence": package.licence,
            "site": package.site,
            "install": package.install,
        }
        for package in packages.CATALOGUE
    ]
    if as_json:
        say(json.dumps(rows, indent=1))
        return
    width = max(len(row["package"]) for row in rows)
    for row in rows:
        here = row["version"] or f"not here: {row['install']}"
        say(f"{row['package']:{width}}  {row['licence']:18}  {here}")


@command.command("fetch")
@click.argument("names", nargs=-1, metavar="[PACKAGE]...")
@click.option(
    "--from",
    "source",
    type=click.Path(exists=True, path_type=Path),
    help="Take the files from this checkout or archive, not from GitHub.",
)
def fetch(names: tuple[str, ...], source: Path | None) -> None:
    """Bring the libraries that are repositories (default: all), each held to its commit's sha256.

    They go to this user's cache, or to the folder that NSABENCH_PACKAGES names.

    Example: nsabench packages fetch native-sparse-attention-triton --from ~/checkout
    """
    wanted = [packages.find(name) for name in names] or [
        package for package in packages.CATALOGUE if package.repository is not None
    ]
    if source is not None and len(wanted) != 1:
        raise UsageError("--from is one library's files", "name that library, and no other.")
    for package in wanted:
        if package.repository is None:
            raise UsageError(f"{package.name} is no repository", f"{package.install}.")
        where = repository.fetch(package.repository, source)
        for repair in package.repository.repairs:
            say(f"{package.name}: {repair.file} was repaired: {repair.why}")
        say(f"{package.name} {package.version}: {where}")


@command.command("report")
@click.argument("run", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.md",
    help="Write it there, and do not print it.",
)
@_options.as_json
def report(run: Path, out: Path | None, as_json: bool) -> None:
    """What was wrong or failed in libraries in a run, as Markdown for their own trackers: shape,
    versions, errors, diagnosis, and how to reproduce it.

    Example: nsabench packages report results/packages --out upstream.md
    """
    if as_json and out is not None:
        raise click.UsageError("--json and --out exclude each other")
    records = read_records(run)
    if as_json:
        say(json.dumps(upstream.as_data(records), indent=1))
        return
    text = upstream.render(records, str(run))
    if out is None:
        say(text.rstrip())
    else:
        say(replace(out, text))

"""nsabench packages"""

from __future__ import annotations

import json
from pathlib import Path

import click

from nsabench import packages
from nsabench.cli import _options
from nsabench.cli._say import say
from nsabench.errors import UsageError
from nsabench.packages import repository


@click.group("packages")
def command() -> None:
    """List and fetch the public libraries that implementations call.

    Example: nsabench packages list
    """


@command.command("list")
@_options.as_json
def listing(as_json: bool) -> None:
    """List the libraries that have an adapter: version or command to install, and licence.

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
    help="Checkout or archive to take the files from, instead of GitHub.",
)
def fetch(names: tuple[str, ...], source: Path | None) -> None:
    """Fetch the libraries that are not on PyPI (default: all), each checked by a sha256.

    They go to the user's cache, or to the folder that NSABENCH_PACKAGES names.

    Example: nsabench packages fetch native-sparse-attention-triton --from ~/checkout
    """
    wanted = [packages.find(name) for name in names] or [
        package for package in packages.CATALOGUE if package.repository is not None
    ]
    if source is not None and len(wanted) != 1:
        raise UsageError("--from holds the files of one library", "name that library alone.")
    for package in wanted:
        if package.repository is None:
            raise UsageError(f"{package.name} is not a repository", f"{package.install}.")
        where = repository.fetch(package.repository, source)
        for repair in package.repository.repairs:
            say(f"{package.name}: {repair.file} was repaired: {repair.why}")
        say(f"{package.name} {package.version}: {where}")

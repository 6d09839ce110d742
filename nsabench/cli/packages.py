"""nsabench packages"""

from __future__ import annotations

from pathlib import Path

import click

from nsabench import packages
from nsabench.cli import _options
from nsabench.cli._say import say, say_columns, say_json
from nsabench.errors import UsageError
from nsabench.packages import repository


@click.group("packages")
def command() -> None:
    """Fetch libraries that implementations call.

    Example: nsabench packages list
    """


@command.command("list")
@_options.as_json
def listing(as_json: bool) -> None:
    """List libraries with version and licence.

    The list also has the command that installs each library.

    Example: nsabench packages list --json
    """
    names = ("version", "licence", "site", "install")
    rows = [
        {"package": p.name, **{name: getattr(p, name) for name in names}}
        for p in packages.CATALOGUE
    ]
    if as_json:
        say_json(rows)
    else:
        say_columns([list(row.values()) for row in rows])


@command.command("fetch")
@click.argument("names", nargs=-1, metavar="[PACKAGE]...")
@click.option(
    "--from",
    "source",
    type=click.Path(exists=True, path_type=Path),
    help="Checkout or archive to use instead of GitHub.",
)
def fetch(names: tuple[str, ...], source: Path | None) -> None:
    """Fetch libraries that are not on PyPI.

    By default all are fetched, each checked by its sha256, into the user's cache or into the folder
    that NSABENCH_PACKAGES names.

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

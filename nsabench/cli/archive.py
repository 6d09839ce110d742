from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.table import Table

from nsabench.cli import _help, _options
from nsabench.cli._say import say, say_json
from nsabench.cli._trust import least_trust
from nsabench.errors import VerificationFailed
from nsabench.evidence.manifest.keys import trusted_keyids
from nsabench.machine.environment.pairs import describe_mismatch
from nsabench.output import terminal
from nsabench.text import shown

if TYPE_CHECKING:
    from nsabench.evidence.archive import Archive


def _open(location: str, *, create: bool = False) -> Archive:
    # The archive needs an extra, and its libraries would slow down --help.
    from nsabench.evidence.archive import Archive

    return Archive(location, create=create)


@_help.group("archive")
def command() -> None:
    """Keep and query verified runs.

    ARCHIVE is a folder or s3://BUCKET/PREFIX. The AWS_* variables give access to S3.

    Example: nsabench archive query archive "SELECT gpu, count(*) FROM runs GROUP BY gpu"
    """


@command.command("add")
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--to", "location", required=True, metavar="ARCHIVE", help="Folder or s3:// address.")
@_options.trusted
@_options.ops_of_the_run
def add(runs: tuple[Path, ...], location: str, public: tuple[Path, ...]) -> int:
    """Verify runs and add them to an archive.

    Adding a run again changes nothing.

    Example: nsabench archive add results/* --to s3://bench/runs
    """
    archive = _open(location, create=True)
    trusted = trusted_keyids(public)
    failed = 0
    for run in runs:
        if run.suffix == ".shards" and not (run / "plan.json").exists():
            say(f"skipped: {run} contains the shards of a merged run", err=True)
            continue
        try:
            outcome, prefix = archive.add(run, trusted=trusted, require=least_trust(public))
        except VerificationFailed as error:
            say(f"nsabench: {error}", err=True)
            failed += 1
        else:
            say(f"{outcome.value}: {prefix}")
    if failed:
        what = f"{failed} of {len(runs)} runs were not added"
        raise VerificationFailed(what, "read the reasons above.")
    return 0


@command.command("verify")
@click.argument("location", metavar="ARCHIVE")
@_options.trusted
@_options.as_json
def verify(location: str, public: tuple[Path, ...], as_json: bool) -> int:
    """List and verify the runs of an archive.

    Checks signatures and hashes, and whether manifests and tables agree. Exits with 4 if a run is
    broken.

    Example: nsabench archive verify s3://bench/runs --key signing.key.pub
    """
    found = _open(location).survey(trusted_keyids(public), least_trust(public))
    broken, rows = found.broken, []
    for run in found.sound:
        p, e = run.predicate, run.predicate.environment
        unpaired = describe_mismatch(e.torch, e.triton)
        rows.append({**p.model_dump(mode="json"), "trust": run.trust, "unpaired": unpaired})
        if not as_json:
            texts = (p.run_id, e.gpu or "no GPU", f"torch {e.torch}", f"triton {e.triton}")
            say("  ".join(filter(None, (*texts, unpaired, f"{p.records} records", run.trust))))
    if as_json:
        say_json({"sound": rows, "broken": broken, "unfinished": found.stray})
    else:
        say(f"sound runs: {len(rows)}, broken: {len(broken)}; unfinished objects: {found.stray}")
    for sentence in broken:
        say(f"nsabench: {sentence}", err=True)
    if not rows and not broken:
        raise VerificationFailed(
            f"{location} contains no run", "add one with `nsabench archive add RUN --to ARCHIVE`."
        )
    if broken:
        raise VerificationFailed(
            f"{len(broken)} of {len(rows) + len(broken)} runs are broken",
            "read the reasons above: give --key, or copy altered runs again from their machines.",
        )
    return 0


@command.command("query")
@click.argument("location", metavar="ARCHIVE")
@click.argument("sql")
@_options.trusted
@_options.as_json
def query(location: str, sql: str, public: tuple[Path, ...], as_json: bool) -> None:
    """Query the verified runs of an archive in SQL.

    The views are runs, records, comparisons and samples.

    Example: nsabench archive query archive "SELECT run_id, max(ratio) FROM comparisons GROUP BY 1"
    """
    from nsabench.evidence.archive.query import query as ask

    archive = _open(location)
    found = archive.survey(trusted_keyids(public), least_trust(public))
    for sentence in found.broken:
        say(f"nsabench: left out: {sentence}", err=True)
    if found.broken and not found.sound:
        raise VerificationFailed(f"{location}: all runs are left out", "read the reasons above.")
    answer = ask(archive, sql, found.sound)
    if as_json:
        say_json(answer.to_pylist())
        return
    table = Table(*map(shown, answer.column_names))
    for row in answer.to_pylist():
        table.add_row(*("" if value is None else shown(value) for value in row.values()))
    terminal.console().print(table)

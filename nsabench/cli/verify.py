from pathlib import Path

import click

from nsabench.cli import _help, _options
from nsabench.cli._say import say, say_json
from nsabench.cli._trust import least_trust
from nsabench.evidence.manifest import Report, verify
from nsabench.evidence.manifest.keys import revocations, trusted_keyids
from nsabench.evidence.manifest.statement import Trust
from nsabench.text import shown


@_help.command("verify")
@click.argument("run", type=_options.EXISTING_FOLDER)
@_options.trusted
@click.option(
    "--require",
    type=click.Choice([t.value for t in Trust]),
    help="Lowest trust level that passes. Default: ephemeral, or pinned with --key.",
)
@click.option(
    "--revoked",
    multiple=True,
    type=_options.FILE,
    help="List of revoked keys. See also NSABENCH_REVOKED_KEYS.",
)
@_options.ops_of_the_run
@_options.as_json
def command(
    run: Path,
    public: tuple[Path, ...],
    require: str | None,
    revoked: tuple[Path, ...],
    as_json: bool,
) -> int:
    """Check that a run is complete and unaltered.

    Checks the signature and every hash, derives tables and thresholds from the log again, and
    compares them. Shows the key that signed. Names the first broken check, and exits then with 4.

    Example: nsabench verify results/20260101T120000Z-a1b2c3 --key signing.key.pub
    """
    report = verify(
        run,
        trusted=trusted_keyids(public),
        require=least_trust(public, require),
        revoked=revocations(revoked),
    )
    if as_json:
        say_json(_as_json(report))
    else:
        _show(report)
    report.raise_if_broken()
    return 0


def _show(report: Report) -> None:
    styles = {"ok": "green", "broken": "red"}
    for check, outcome in report.outcomes.items():
        styled = click.style(f"{outcome:8}", fg=styles.get(outcome))
        click.echo(f"{styled} {check:12} {shown(report.details.get(check, ''))}".rstrip())
    if report.broken is None:
        say(f"trust level: {report.trust} ({report.trust.meaning})")


def _as_json(report: Report) -> dict[str, object]:
    return {
        "run": str(report.folder),
        "ok": report.broken is None,
        "broken": report.broken,
        "trust": report.trust.value if report.broken is None else None,
        "keyid": report.keyid or None,
        "measured_by": report.logged.origin.keyid if report.logged else None,
        "run_id": report.predicate.run_id if report.predicate else None,
        "checks": [
            {"check": check, "outcome": outcome, "detail": report.details.get(check, "")}
            for check, outcome in report.outcomes.items()
        ],
    }

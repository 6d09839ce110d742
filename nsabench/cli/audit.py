"""nsabench audit"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from nsabench import audit, journal, terminal
from nsabench.checks import Effect
from nsabench.cli import _options
from nsabench.plan import Plan
from nsabench.results.assemble import assemble
from nsabench.run_folder import RunFolder


@click.command("audit")
@click.argument("path", type=click.Path(path_type=Path, exists=True))
@click.option("--gpu", metavar="NAME", help='The device of a CSV, such as "RTX 4090".')
@_options.as_json
def command(path: Path, gpu: str | None, as_json: bool) -> int:
    """Hold a run, or a CSV of timings from elsewhere, to the checks.

    Exits with 1 when something graver than a note is found.

    Example: nsabench audit timings.csv --gpu "RTX 4090"
    """
    if path.is_dir():
        folder = RunFolder.existing(path)
        contents = journal.read(folder.journal)
        findings = assemble(Plan.read(folder.plan), contents).findings
    else:
        findings = audit.audit_csv(path, gpu)
    if as_json:
        click.echo(json.dumps([asdict(f) for f in findings], indent=1))
    else:
        terminal.print_findings(findings, terminal.console())
        terminal.print_counts(findings, terminal.console())
    return 1 if any(f.effect is not Effect.NOTE for f in findings) else 0

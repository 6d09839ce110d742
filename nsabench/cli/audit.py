from dataclasses import asdict
from pathlib import Path

import click

from nsabench import labels
from nsabench.checks import HARMLESS, Effect, Finding
from nsabench.cli import _help, _options
from nsabench.cli._say import say_json
from nsabench.cli._trust import admit
from nsabench.model.plan import Plan
from nsabench.model.vocabulary import Purpose, Role
from nsabench.output import terminal
from nsabench.running.folder import RunFolder
from nsabench.verdicts import audit
from nsabench.verdicts.attempts import states_of
from nsabench.verdicts.audit.table import UNITS_MS
from nsabench.verdicts.results import assemble


@_help.command("audit")
@click.argument("path", type=click.Path(path_type=Path, exists=True))
@click.option("--gpu", metavar="NAME", help='Device of a CSV table, such as "RTX 4090".')
@click.option("--candidate", multiple=True, metavar="NAME", help="Candidate of a CSV table.")
@click.option("--baseline", multiple=True, metavar="NAME", help="Baseline of a CSV table.")
@click.option("--unit", type=click.Choice(list(UNITS_MS)), help="Unit of columns without one.")
@click.option("--each", is_flag=True, help="Print a line for each finding, even if many are alike.")
@_options.ops_of_the_run
@_options.as_json
def command(
    path: Path,
    gpu: str | None,
    candidate: tuple[str, ...],
    baseline: tuple[str, ...],
    unit: str | None,
    each: bool,
    as_json: bool,
) -> int:
    """Apply the checks to a run or a CSV table.

    A table has a column of times for each implementation (triton_ms, sdpa_ms), or a row for each
    (implementation, time_ms). The output begins with the meaning given to each column. If no name
    shows which implementation is the candidate, give --candidate.

    Exits with 1 if a finding changes a status or makes a verdict invalid or inconclusive. Exits
    with 2 if a table cannot be read or has no known candidate.

    Example: nsabench audit timings.csv --gpu "RTX 4090"
    """
    cases: dict[str, str] = {}
    if path.is_dir():
        folder = RunFolder.existing(path)
        admit(path, tables=False)
        plan, parts = Plan.read(folder.plan), folder.parts()
        cases = {planned.id: labels.case_with_id(planned.case) for planned in plan.cases}
        controls = {i.name for i in plan.implementations if i.role is Role.CONTROL}
        results = assemble(plan.run_id, parts)
        findings = [  # a finding about a control is expected, unless the control was missed
            f
            for f in results.findings
            if f.effect is Effect.INVALID or f.implementation not in controls
        ]
        findings += results.found_while_measuring
        measured = [states_of(part.plan, part.log, Purpose.MAIN) for part in parts]
        missing = plan.by_id.keys() - {case_id for states in measured for case_id in states}
        if missing:
            sentence = f"{len(missing)} of {len(plan.cases)} cases were not measured"
            findings.insert(0, Finding("completeness", Effect.INVALID, sentence))
    else:
        findings = audit.audit_csv(
            path, gpu, candidates=candidate, baselines=baseline, unit=unit or ""
        )
    if as_json:
        say_json([asdict(f) for f in findings])
    else:
        terminal.print_findings(findings, cases, terminal.console(), each=each)
    return 1 if any(f.effect not in HARMLESS for f in findings) else 0

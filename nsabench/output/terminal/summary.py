"""The end of a run: its tables, what was found, and a panel with the outcome."""

from __future__ import annotations

from collections import Counter

from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from nsabench.assessment import labels, threshold
from nsabench.assessment.checks.finding import Effect
from nsabench.assessment.failures import failures, unproven
from nsabench.execution.run import Finished
from nsabench.model.vocabulary import Role
from nsabench.output.terminal.findings import print_findings
from nsabench.output.terminal.tables import baselines_table, candidates_table
from nsabench.text import shown

SHOWN_FAILURES = 12
SHOWN_FINDINGS = 12


def print_summary(finished: Finished, console: Console) -> None:
    """The tables and the last panel of a run."""
    records = finished.results.records
    console.print(candidates_table(records))
    diagnosed = [r for r in records if r.role is Role.CANDIDATE and r.diagnosis]
    for r in diagnosed[:SHOWN_FINDINGS]:
        line = f"{r.implementation} on {labels.named(r)}: diagnosis: {r.diagnosis}"
        console.print(Text(shown(line)), soft_wrap=True)
    console.print(baselines_table(records))
    controls = {r.implementation for r in records if r.role is Role.CONTROL}
    grave = [
        f
        for f in finished.results.findings
        # What was found in a control is what it is there for, unless it got away.
        if f.effect is Effect.INVALID
        or (f.implementation not in controls and (f.effect is not Effect.NOTE or not f.case_id))
    ]
    if grave:
        cases = {r.case_id: labels.named(r) for r in records}
        print_findings(grave, cases, console, SHOWN_FINDINGS)
    console.print(_panel(finished))


def _panel(finished: Finished) -> Panel:
    records = finished.results.records
    verdicts = Counter(r.verdict for r in records if r.verdict)
    failed = failures(finished.results)
    harness = finished.wall_s - finished.measuring_s
    lines = [
        "verdicts: " + (", ".join(f"{n} {v}" for v, n in verdicts.most_common()) or "none"),
        f"{len(records)} records in {finished.wall_s:.1f} s; the harness took {harness:.1f} s of "
        f"it ({harness / max(finished.wall_s, 1e-9):.0%}, "
        f"{1e3 * harness / max(len(records), 1):.0f} ms a record)",
        *(f"unproven: {line}" for line in unproven(finished.results)),
        *(f"failed: {line}" for line in failed[:SHOWN_FAILURES]),
        *([f"... and {len(failed) - SHOWN_FAILURES} more"] if len(failed) > SHOWN_FAILURES else []),
        *_decision(finished),
        *(
            f"{name}: {path}"
            for name, path in (
                ("report", finished.folder.path / "report.html"),
                ("results", finished.folder.path),
            )
            if path.exists()
        ),
    ]
    return Panel(
        Text("\n".join(map(shown, lines))),
        title="failed" if failed else "complete",
        border_style="red" if failed else "green",
    )


def _decision(finished: Finished) -> list[str]:
    """From which length on each candidate is worth using, where `thresholds.yaml` was decided."""
    if not finished.folder.thresholds.exists():
        return []
    decisions = threshold.decide_run(finished.results.records, finished.plan)
    lines = []
    for d in decisions:
        why = f" ({'; '.join(d.reasons)})" if d.reasons else ""
        lines.append(f"decision: {d.candidate} ({d.op}): {d.sentence}{why}")
        if d.min_length is not None:
            lines += [f"  but {caveat}" for caveat in d.caveats]
        lines += [f"  {note}" for note in d.notes]
    otherwise = threshold.said_otherwise(finished.folder.path, finished.plan, decisions)
    return [*lines, *([otherwise] if otherwise else [])]

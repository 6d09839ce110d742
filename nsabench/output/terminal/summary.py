"""The end of a run: what was found, the table with the user's own last, and the outcome."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from nsabench.assessment import labels
from nsabench.assessment.checks.finding import Effect
from nsabench.assessment.failures import failures
from nsabench.execution.run import Finished
from nsabench.model.record import Record
from nsabench.model.vocabulary import BENIGN, Catch, Role, Status
from nsabench.output.terminal import outcome
from nsabench.output.terminal.findings import print_findings
from nsabench.output.terminal.tables import baselines_table, candidates_table
from nsabench.text import shown


def print_summary(finished: Finished, console: Console, *, verbose: bool = False) -> None:
    """The findings, the table and the last panel of a run. verbose: every baseline and control, and
    every finding, a line each."""
    records = finished.results.records
    missed = any(r.caught is Catch.MISSED for r in records)
    if verbose or missed:
        console.print(baselines_table(records))
    else:
        for line in (_baselines(records), outcome.controls(records)):
            if line:
                console.print(shown(line), highlight=False, soft_wrap=True)
    console.print(_time(finished), highlight=False, soft_wrap=True)
    _print_grave(finished, console, verbose=verbose)
    for line in _failed(finished):
        console.print(Text(shown(line)), soft_wrap=True)
    console.print(candidates_table(_own_last(finished), console.width))
    console.print(_panel(finished, console.width))


def _print_grave(finished: Finished, console: Console, *, verbose: bool) -> None:
    records = finished.results.records
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
        print_findings(grave, cases, console, each=verbose)


def _baselines(records: Sequence[Record]) -> str:
    """How often which baseline was the one to beat."""
    best = Counter({r.case_id: r.best_baseline for r in records if r.best_baseline}.values())
    if not best:
        return ""
    return "best baselines: " + ", ".join(f"{name} in {n}" for name, n in best.most_common())


def _failed(finished: Finished) -> Iterator[str]:
    """What failed, alike on one line, with where its traceback lies."""
    groups: dict[tuple[str, str, str], list[Record]] = {}
    for r in finished.results.records:
        if r.role is not Role.CONTROL and r.status not in BENIGN:
            why = r.diagnosis or r.reason
            groups.setdefault((r.implementation, r.status, why), []).append(r)
    for (name, status, why), rows in groups.items():
        often = f"in {len(rows)} cases, first " if len(rows) > 1 else ""
        yield f"failed: {name} {often}on {labels.named(rows[0])}: {status}: {why}"
        log = finished.folder.path / "logs" / f"{rows[0].case_id}.log"
        if status != Status.WRONG and log.exists():
            yield f"  its traceback and what it printed: {log}"


def _time(finished: Finished) -> str:
    count, harness = len(finished.results.records), finished.wall_s - finished.measuring_s
    whole_s = max(finished.wall_s, 1e-9)
    line = (
        f"{count} records in {finished.wall_s:.1f} s; the harness took {harness:.1f} s of it "
        f"({harness / whole_s:.0%})"
    )
    if finished.queue_s:
        line += f", the queue {finished.queue_s:.1f} s ({finished.queue_s / whole_s:.0%})"
    return line


def _own_last(finished: Finished) -> list[Record]:
    """The records, the user's own after those that ship."""
    own = outcome.of_the_user(finished)
    return sorted(finished.results.records, key=lambda r: (r.op, r.implementation) in own)


def _panel(finished: Finished, width: int) -> Panel:
    failed = failures(finished.results)
    said = outcome.paying(finished)
    # What does not fit has been said above, or stands on the page; what pays has not.
    rest = outcome.lines(finished, outcome.ROOM - len(said))
    said += [_fit(line, width - 4) for line in rest]
    page = finished.folder.path / "report.html"
    said.append(f"report: {page}" if page.exists() else f"results: {finished.folder.path}")
    return Panel(
        Text("\n".join(map(shown, said))),
        title="failed" if failed else "complete",
        border_style="red" if failed else "green",
    )


def _fit(line: str, width: int) -> str:
    return line if len(line) <= width else line[: width - 1] + "…"

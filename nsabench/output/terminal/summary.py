"""The end of a run: what was found, the table with the user's own last, and the outcome."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from nsabench import labels
from nsabench.checks.finding import Effect, Finding
from nsabench.model.record import Record
from nsabench.model.vocabulary import BENIGN, Catch, Role, Status
from nsabench.output import grouped, tables
from nsabench.output.document import on_terminal
from nsabench.output.terminal import outcome
from nsabench.running.run import Finished
from nsabench.text import shown
from nsabench.verdicts import pays
from nsabench.verdicts.failures import failures

EFFECT_STYLES = {
    Effect.INVALID: "bold red",
    Effect.WRONG: "bold red",
    Effect.IMPLAUSIBLE: "bold red",
    Effect.INCONCLUSIVE: "yellow",
    Effect.UNPROVEN: "yellow",
}


def print_summary(finished: Finished, console: Console, *, verbose: bool = False) -> None:
    """Print the findings, the table and the last panel of a run. verbose: every baseline, control
    and finding, a line each."""
    records = finished.results.records
    missed = any(r.caught is Catch.MISSED for r in records)
    if verbose or missed:
        console.print(*on_terminal([tables.others(records)]))
    else:
        for line in (_baselines(records), outcome.controls(records)):
            if line:
                console.print(shown(line), highlight=False, soft_wrap=True)
    console.print(_time(finished), highlight=False, soft_wrap=True)
    _print_grave(finished, console, verbose=verbose)
    for line in _failed(finished):
        console.print(Text(shown(line)), soft_wrap=True)
    own = outcome.of_the_user(finished)
    own_last = sorted(records, key=lambda r: (r.op, r.implementation) in own)
    for block in on_terminal(tables.candidates_on_terminal(own_last, console.width)):
        console.print(block)
    console.print(_panel(finished, console.width))


def _print_grave(finished: Finished, console: Console, *, verbose: bool) -> None:
    records = finished.results.records
    controls = {r.implementation for r in records if r.role is Role.CONTROL}
    grave = [
        f
        for f in finished.results.findings
        # Findings in a control are expected, unless it got away.
        if f.effect is Effect.INVALID
        or (f.implementation not in controls and (f.effect is not Effect.NOTE or not f.case_id))
    ]
    if grave:
        cases = {r.case_id: labels.named(r) for r in records}
        print_findings(grave, cases, console, each=verbose)


def _baselines(records: Sequence[Record]) -> str:
    best = Counter({r.case_id: r.best_baseline for r in records if r.best_baseline}.values())
    counts = ", ".join(f"{name} in {n}" for name, n in best.most_common())
    return f"best baselines: {counts}" if counts else ""


def _failed(finished: Finished) -> Iterator[str]:
    records = finished.results.records
    failed = (r for r in records if r.role is not Role.CONTROL and r.status not in BENIGN)
    groups = grouped(failed, lambda r: (r.implementation, r.status, r.diagnosis or r.reason))
    for (name, status, why), rows in groups.items():
        often = f"in {len(rows)} cases, first " if len(rows) > 1 else ""
        yield f"failed: {name} {often}on {labels.named(rows[0])}: {status}: {why}"
        log = finished.folder.path / "logs" / f"{rows[0].case_id}.log"
        if status != Status.WRONG and log.exists():
            yield f"  its traceback and what it printed: {log}"


def _time(finished: Finished) -> str:
    count, wall_s = len(finished.results.records), max(finished.wall_s, 1e-9)
    harness_s, queue_s = finished.wall_s - finished.measuring_s, finished.queue_s
    line = f"{count} records in {finished.wall_s:.1f} s; "
    line += f"the harness took {harness_s:.1f} s of it ({harness_s / wall_s:.0%})"
    return f"{line}, the queue {queue_s:.1f} s ({queue_s / wall_s:.0%})" if queue_s else line


def _panel(finished: Finished, width: int) -> Panel:
    failed = failures(finished.results)
    said = list(outcome.of_payments(pays.decide(finished.results.records)))[: outcome.PAYS]
    # Lines that are cut are also above, or on the page. The lines of what pays are not.
    for line in outcome.lines(finished, outcome.ROOM - len(said)):
        said.append(line if len(line) <= width - 4 else f"{line[: width - 5]}…")
    page = finished.folder.path / "report.html"
    said.append(f"report: {page}" if page.exists() else f"results: {finished.folder.path}")
    return Panel(
        Text("\n".join(map(shown, said))),
        title="failed" if failed else "complete",
        border_style="red" if failed else "green",
    )


def print_findings(
    findings: Sequence[Finding],
    cases: Mapping[str, str],
    console: Console,
    *,
    each: bool = False,
) -> None:
    """Print a line for each check and implementation, with the number of findings and the last
    one; or a line for each finding. cases: ids in words, where there are any."""

    def alike(place: int) -> object:
        finding = findings[place]
        # A finding that names no case speaks of the run, and stands alone.
        alone = each or not finding.case_id
        return place if alone else (finding.check, finding.effect, finding.implementation)

    for places in grouped(range(len(findings)), alike).values():
        last = findings[places[-1]]
        case = cases.get(last.case_id, last.case_id)
        where = " on ".join(part for part in (last.implementation, case) if part)
        often = f"in {len(places)} cases; the last, " if len(places) > 1 else ""
        console.print(
            Text.assemble(
                (f"{last.effect:12}", EFFECT_STYLES.get(last.effect, "dim")),
                f" {shown(last.check)}: {often}",
                (shown(f"{where}: ") if where else "", "bold"),
                shown(last.sentence),
            ),
        )
    if not findings:
        console.print("nothing was found")


def print_counts(findings: Sequence[Finding], console: Console) -> None:
    counts = Counter((f.effect, f.check) for f in findings)
    words = [f"{n} {check} ({effect})" for (effect, check), n in counts.items()]
    if words:
        console.print("in all: " + ", ".join(words), highlight=False)

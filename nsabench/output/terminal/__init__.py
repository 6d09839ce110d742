"""What a run shows in a terminal: progress while it goes, tables and a summary at its end."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import yaml
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from nsabench import ops
from nsabench.assessment import labels
from nsabench.assessment.checks.finding import Effect, Finding
from nsabench.assessment.failures import failures
from nsabench.execution.journal import Entry
from nsabench.execution.protocol import Step
from nsabench.execution.run import Finished
from nsabench.model.description import Described
from nsabench.model.outcome import Ceilings
from nsabench.model.plan import Plan, PlannedCase
from nsabench.model.vocabulary import Role, Status, Verdict
from nsabench.output.terminal.live import LiveTable

STYLES = {
    Status.OK: "green",
    Status.SKIPPED: "dim",
    Status.UNSUPPORTED: "dim",
    Verdict.FASTER: "bold green",
    Verdict.SLOWER: "red",
    Verdict.SAME: "cyan",
    Verdict.INCONCLUSIVE: "yellow",
    Verdict.INVALID: "bold red",
}
EFFECT_STYLES = {
    Effect.INVALID: "bold red",
    Effect.WRONG: "bold red",
    Effect.IMPLAUSIBLE: "bold red",
    Effect.INCONCLUSIVE: "yellow",
}
SHOWN_FAILURES = 12
SHOWN_FINDINGS = 12


def interactive(console: Console) -> bool:
    return console.is_terminal and not os.environ.get("CI") and "NO_COLOR" not in os.environ


class Progress:
    """Progress of a run: a live table on a terminal, one plain line a case elsewhere.

    The table is redrawn when the worker reports a step or a case is done. The worker reports none
    while it times, so nothing is redrawn inside a timed region.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self._table = LiveTable()
        self._live = Live(console=console, auto_refresh=False) if interactive(console) else None
        self._began = time.monotonic()
        self._ran = 0
        self._number = self._total = 0

    def __enter__(self) -> Progress:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            # The tables of the end say it all again, and better.
            self._live.update(Text(""), refresh=True)
            self._live.stop()

    def run_started(self, plan: Plan, described: Described, ceilings: Ceilings) -> None:
        software, device = described.software, described.device
        self.console.print(
            f"run {plan.run_id}: {len(plan.cases)} cases on {device.get('name') or plan.device}, "
            f"torch {software.get('torch')}, triton {software.get('triton')}"
        )
        rates = ", ".join(f"{k} {v:.3g} TFLOP/s" for k, v in ceilings.tflop_s.items())
        self.console.print(f"measured ceilings: copy {ceilings.copy_gb_s or 0:.4g} GB/s, {rates}")
        self._table.roles = {(i.op, i.name): i.role for i in plan.implementations}
        self._began = time.monotonic()

    def case_started(self, planned: PlannedCase, number: int, total: int) -> None:
        self._number, self._total = number, total
        self._draw(labels.of_case(planned.case))

    def step(self, step: Step) -> None:
        self._table.doing = f"{step.phase} {step.implementation}".strip()
        self._draw()

    def case_finished(self, planned: PlannedCase, entry: Entry) -> None:
        self._ran += 1
        self._table.add(planned, entry)
        if self._live:
            self._draw()
            return
        roles = self._table.roles
        # A control that is wrong has done its work; what became of each is judged at the end.
        counts = Counter(
            o.status.value
            for o in entry.outcomes
            if roles[planned.case.op, o.implementation] is not Role.CONTROL
        )
        controls = len(entry.outcomes) - counts.total()
        said = ", ".join(f"{n} {status}" for status, n in sorted(counts.items()))
        if controls:
            said += f", controls: {controls}"
        self.console.print(
            f"[{self._number}/{self._total}] {labels.of_case(planned.case)}: {said} "
            f"({entry.wall_s:.1f} s)",
            highlight=False,
        )

    def note(self, text: str) -> None:
        self.console.print(text, highlight=False)

    def _draw(self, case: str | None = None) -> None:
        if case is not None:
            self._table.case = case
        if self._live:
            head = f"[{self._number}/{self._total}] {self._eta()}".rstrip()
            self._live.update(self._table.render(head), refresh=True)

    def _eta(self) -> str:
        if not self._ran:
            return ""
        left = self._total - self._number + 1
        seconds = (time.monotonic() - self._began) / self._ran * left
        return f"about {seconds / 60:.0f} min left" if seconds > 90 else f"{seconds:.0f} s left"


def summary(finished: Finished, console: Console) -> None:
    """The tables and the last panel of a run."""
    records = finished.results.records
    console.print(candidates_table(records))
    diagnosed = [r for r in records if r["role"] == Role.CANDIDATE and r["diagnosis"]]
    for r in diagnosed[:SHOWN_FINDINGS]:
        line = f"{r['implementation']} on {labels.named(r)}: diagnosis: {r['diagnosis']}"
        console.print(Text(line), soft_wrap=True)
    console.print(baselines_table(records))
    caught = {r["implementation"] for r in records if r["role"] == Role.CONTROL}
    grave = [
        f
        for f in finished.results.findings
        # What was found in a control is what it is there for, unless it got away.
        if f.effect is Effect.INVALID
        or (f.implementation not in caught and (f.effect is not Effect.NOTE or not f.case_id))
    ]
    if grave:
        cases = {r["case_id"]: labels.named(r) for r in records}
        print_findings(grave, cases, console, SHOWN_FINDINGS)
    console.print(_panel(finished))


def candidates_table(records: Sequence[dict[str, Any]]) -> Table:
    """One line a case and candidate, with the baseline it has to beat."""
    table = Table(
        title="candidates",
        title_justify="left",
        header_style="bold",
        box=SIMPLE_HEAD,
        pad_edge=False,
    )
    for name, justify in (
        ("case", "left"),
        ("candidate", "left"),
        ("status", "left"),
        ("MAE", "right"),
        ("ms", "right"),
        ("roof", "right"),
        ("best baseline", "left"),
        ("its ms", "right"),
        ("speed-up [95 %]", "right"),
        ("verdict", "left"),
    ):
        # Names may take a second line; a number that is cut off is none.
        long = name in ("case", "candidate", "best baseline")
        table.add_column(name, justify=justify, no_wrap=not long, overflow="fold")  # type: ignore[arg-type]
    times = {(r["case_id"], r["implementation"]): r["median_ms"] for r in records}
    for r in records:
        if r["role"] != Role.CANDIDATE:
            continue
        ratio = (
            ""
            if r["speedup"] is None
            else (f"{r['speedup']:.3f} [{r['speedup_lo']:.3f}, {r['speedup_hi']:.3f}]")
        )
        table.add_row(
            labels.case(r),
            r["implementation"],
            Text(r["status"], STYLES.get(r["status"], "bold red")),
            number(r["mae"], ".1e"),
            number(r["median_ms"], ".4g"),
            number(r["roofline_fraction"], ".0%"),
            r["best_baseline"],
            number(times.get((r["case_id"], r["best_baseline"])), ".4g"),
            ratio,
            Text(r["verdict"] or "-", STYLES.get(r["verdict"], "")),
        )
    return table


def baselines_table(records: Sequence[dict[str, Any]]) -> Table:
    """One line a baseline or control: how often it was what, and how often it was the best."""
    table = Table(title="baselines and controls", title_justify="left", header_style="bold")
    for name in ("implementation", "role", "outcomes", "best of, caught", "example"):
        table.add_column(name)
    best = Counter(
        r["best_baseline"]
        for r in {r["case_id"]: r for r in records if r["best_baseline"]}.values()
    )
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for r in records:
        if r["role"] != Role.CANDIDATE:
            groups.setdefault((r["implementation"], r["role"]), []).append(r)
    for (name, role), rows in groups.items():
        counts = Counter(r["status"] for r in rows)
        reasons = [r["diagnosis"] or r["reason"] for r in rows if r["status"] != Status.OK]
        table.add_row(
            name,
            role,
            ", ".join(f"{n} {status}" for status, n in sorted(counts.items())),
            str(best[name]) if role == Role.BASELINE else _catches(rows),
            _short(reasons[0]) if reasons else "",
        )
    return table


def _short(text: str, most: int = 100) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _catches(rows: Sequence[dict[str, Any]]) -> str:
    counts = Counter(r["caught"] for r in rows)
    return ", ".join(f"{n} {became}" for became, n in sorted(counts.items()))


def print_findings(
    findings: Sequence[Finding],
    cases: Mapping[str, str],
    console: Console,
    most: int | None = None,
) -> None:
    """One line a finding, at most `most` of them. `cases`: ids in words, where there are any."""
    for finding in findings[:most]:
        case = cases.get(finding.case_id, finding.case_id)
        where = " on ".join(part for part in (finding.implementation, case) if part)
        console.print(
            Text.assemble(
                (f"{finding.effect:12}", EFFECT_STYLES.get(finding.effect, "dim")),
                f" {finding.check}: ",
                (f"{where}: " if where else "", "bold"),
                finding.sentence,
            ),
        )
    if most is not None and len(findings) > most:
        console.print(f"... and {len(findings) - most} more findings")
    if not findings:
        console.print("nothing was found")


def print_counts(findings: Sequence[Finding], console: Console) -> None:
    """How many findings of each check, on one line."""
    counts = Counter((f.effect, f.check) for f in findings)
    said = [f"{n} {check} ({effect})" for (effect, check), n in counts.items()]
    if said:
        console.print("in all: " + ", ".join(said), highlight=False)


def _panel(finished: Finished) -> Panel:
    records = finished.results.records
    verdicts = Counter(r["verdict"] for r in records if r["verdict"])
    failed = failures(finished.results)
    harness = finished.wall_s - finished.measuring_s
    lines = [
        "verdicts: " + (", ".join(f"{n} {v}" for v, n in verdicts.most_common()) or "none"),
        f"{len(records)} records in {finished.wall_s:.1f} s; the harness took {harness:.1f} s of "
        f"it ({harness / max(finished.wall_s, 1e-9):.0%}, "
        f"{1e3 * harness / max(len(records), 1):.0f} ms a record)",
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
        Text("\n".join(lines)),
        title="failed" if failed else "complete",
        border_style="red" if failed else "green",
    )


def _decision(finished: Finished) -> list[str]:
    """What `thresholds.yaml` says, if the run has one: from which length on, or that from none."""
    try:
        content = yaml.safe_load(finished.folder.thresholds.read_text())
    except OSError:
        return []
    lines = []
    for d in content["decisions"]:
        about = ops.current_name(d["op"], d.get("distribution", ""))
        if d["min_L"] is not None:
            said = f"worth using from {d.get('axis', 'L')} = {d['min_L']} on"
        else:
            said = f"at no length ({'; '.join(d['reasons'])})"
        lines.append(f"decision: {d['candidate']} ({about}): {said}")
    return lines


def number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def console() -> Console:
    """Standard output; wide enough for its tables when that is no terminal.

    Without markup: names and reasons are of others, and `[/usr/lib/x.so]` would be a closing tag.
    """
    width = None if sys.stdout.isatty() else 160
    return Console(width=width, soft_wrap=False, markup=False)

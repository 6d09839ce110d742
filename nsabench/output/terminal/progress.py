"""Progress of a run, while it goes."""

from __future__ import annotations

import time
from collections import Counter

from rich.console import Console
from rich.live import Live
from rich.text import Text

from nsabench.assessment import labels
from nsabench.execution.protocol import Step
from nsabench.model.description import Described
from nsabench.model.journal import Entry
from nsabench.model.measurement import Ceilings
from nsabench.model.plan import Plan, PlannedCase
from nsabench.model.vocabulary import Role
from nsabench.output.terminal.progress_table import LiveTable
from nsabench.output.terminal.screen import interactive


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

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._live:
            if kind is None:
                # The tables of the end say it all again, and better.
                self._live.update(Text(""), refresh=True)
            self._live.stop()

    def run_started(self, plan: Plan, described: Described, ceilings: Ceilings) -> None:
        software, device = described.software, described.device
        self.console.print(
            f"run {plan.run_id}: {len(plan.cases)} cases on {device.name or plan.device}, "
            f"torch {software.torch}, triton {software.triton}"
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
        outcomes = ", ".join(f"{n} {status}" for status, n in sorted(counts.items()))
        if controls:
            outcomes += f", controls: {controls}"
        self.console.print(
            f"[{self._number}/{self._total}] {labels.of_case(planned.case)}: {outcomes} "
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

"""The table that a terminal shows while a run goes: the last cases, and what is being done now."""

from __future__ import annotations

from collections import deque
from statistics import median

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from nsabench.assessment import labels
from nsabench.model.journal import Entry
from nsabench.model.measurement import Outcome
from nsabench.model.plan import PlannedCase
from nsabench.model.vocabulary import BENIGN, Role, Status

SHOWN = 12
Line = tuple[str, str, Status, float | None, float | None]


class LiveTable:
    """Candidates as they come in. Ratios are of raw medians: the checks come when all is done."""

    def __init__(self) -> None:
        self.roles: dict[tuple[str, str], Role] = {}
        self.case = ""
        self.doing = ""
        self._lines: deque[Line] = deque(maxlen=SHOWN)

    def add(self, planned: PlannedCase, entry: Entry) -> None:
        """Add a finished case: its candidates, and whatever else failed."""
        for outcome in entry.outcomes:
            role = self.roles.get((planned.case.op, outcome.implementation))
            failed = role is Role.BASELINE and outcome.status not in BENIGN
            if role is Role.CANDIDATE or failed:
                mine = _median(outcome)
                best = min(self._baselines(planned, entry, outcome), default=None)
                ratio = best / mine if best and mine and role is Role.CANDIDATE else None
                self._lines.append(
                    (
                        labels.of_case(planned.case),
                        outcome.implementation,
                        outcome.status,
                        mine,
                        ratio,
                    )
                )

    def _baselines(self, planned: PlannedCase, entry: Entry, beside: Outcome) -> list[float]:
        times = [
            _median(o)
            for o in entry.outcomes
            if o.session == beside.session
            and self.roles.get((planned.case.op, o.implementation)) is Role.BASELINE
            and o.implementation not in planned.alongside
        ]
        return [time for time in times if time is not None]

    def render(self, head: str) -> RenderableType:
        """The table, and one line on what is being done."""
        now = Text(f"{head}  {self.case}  {self.doing}", "cyan", no_wrap=True, overflow="ellipsis")
        if not self._lines:
            return now
        table = Table(header_style="bold", expand=False)
        for name in ("case", "implementation", "status", "ms", "ratio, unchecked"):
            table.add_column(
                name, justify="right" if name in ("ms", "ratio, unchecked") else "left"
            )
        for case, name, status, time, ratio in self._lines:
            table.add_row(
                Text(case),
                Text(name),
                Text(status, "green" if status is Status.OK else "bold red"),
                "-" if time is None else f"{time:.4f}",
                "-" if ratio is None else f"{ratio:.2f}",
            )
        return Group(table, now)


def _median(outcome: Outcome) -> float | None:
    return median(outcome.samples.time_ms) if outcome.samples.time_ms else None

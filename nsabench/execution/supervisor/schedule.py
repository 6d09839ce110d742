"""Runs the cases of a plan one after another and journals each; finds who killed a worker."""

from __future__ import annotations

import time
from itertools import count
from pathlib import Path
from typing import Protocol

from nsabench.execution.journal import Entry, Journal
from nsabench.execution.protocol import Measured
from nsabench.execution.supervisor.executor import Executor, GroupLost
from nsabench.execution.supervisor.retry import BEFORE_ANY, cooled, unless_lost_early
from nsabench.model.case import Case
from nsabench.model.outcome import Conditions, Outcome
from nsabench.model.plan import Plan, PlannedCase
from nsabench.model.vocabulary import Mode, Runs, Status


class Progress(Protocol):
    """Told what happens; shows it to a person or to nobody."""

    def case_started(self, planned: PlannedCase, number: int, total: int) -> None: ...

    def case_finished(self, planned: PlannedCase, entry: Entry) -> None: ...


def run(plan: Plan, executor: Executor, journal: Journal, logs: Path, progress: Progress) -> None:
    """Measure every case that is not journaled yet. An interrupt leaves a resumable journal."""
    for number, planned in enumerate(plan.cases, 1):
        if planned.id in journal.done:
            continue
        progress.case_started(planned, number, len(plan.cases))
        start = time.monotonic()
        entry = _Group(plan, planned, executor).measure()
        entry.wall_s = time.monotonic() - start
        _write_log(logs / f"{planned.id}.log", entry)
        journal.append(entry)
        progress.case_finished(planned, entry)


class _Group:
    """The implementations of one case, until each has an outcome."""

    def __init__(self, plan: Plan, planned: PlannedCase, executor: Executor) -> None:
        self.case: Case = planned.case
        self.executor = executor
        self.sessions = count(1)
        self.outcomes: dict[str, Outcome] = {}
        self.names = list(planned.implementations)
        self.conditions: dict[int, Conditions] = {}
        self.measuring_s = 0.0
        for name in self.names:
            reason = _cannot_run(plan, self.case, name)
            if reason:
                self.outcomes[name] = Outcome(
                    implementation=name, status=Status.SKIPPED, reason=reason
                )

    def measure(self) -> Entry:
        while pending := [name for name in self.names if name not in self.outcomes]:
            try:
                self._together(pending)
            except GroupLost as lost:
                self._find_culprit(pending, lost)
        return Entry(
            case_id=self.case.id,
            outcomes=[self.outcomes[name] for name in self.names],
            conditions=self.conditions,
            measuring_s=self.measuring_s,
        )

    def _together(self, names: list[str]) -> None:
        measured = cooled(lambda: self._measure(names))
        for outcome in measured.outcomes:
            self.outcomes[outcome.implementation] = outcome

    def _measure(self, names: list[str]) -> Measured:
        session = next(self.sessions)
        measured = unless_lost_early(lambda: self.executor.measure(self.case, names, session))
        if [outcome.implementation for outcome in measured.outcomes] != names:
            raise GroupLost(
                "", Status.CRASHED, "the worker answered for others than it was asked", ""
            )
        self.conditions[session] = measured.conditions
        self.measuring_s += measured.measuring_s
        log = self.executor.log()
        for outcome in measured.outcomes:
            outcome.log = log
        return measured

    def _find_culprit(self, pending: list[str], lost: GroupLost) -> None:
        """Give at least one pending implementation an outcome.

        Whoever shares the process may have forged what it said, so a name is only a suspicion. The
        suspect alone first: if it fails alone it is guilty, and the others are run together again.
        If it is innocent, each is run alone. If all are innocent alone, only the combination fails,
        and what each did alone is what is known.
        """
        if lost.phase in BEFORE_ANY:
            # No implementation was called, twice: the case itself, or the machine, is the fault.
            for name in pending:
                self._condemn(name, lost)
            return
        if len(pending) == 1:
            self._condemn(pending[0], lost)
            return
        alone: dict[str, Outcome] = {}
        for name in sorted(pending, key=lambda n: n != lost.suspect):
            try:
                alone[name] = self._measure([name]).outcomes[0]
            except GroupLost as again:
                self._condemn(name, again)
                if name == lost.suspect:
                    return
        if len(alone) == len(pending):
            for outcome in alone.values():
                outcome.notes.append(f"measured alone, since together: {lost.reason}")
            self.outcomes.update(alone)

    def _condemn(self, name: str, lost: GroupLost) -> None:
        self.outcomes[name] = Outcome(
            implementation=name, status=lost.status, reason=lost.reason, log=lost.log
        )


def _cannot_run(plan: Plan, case: Case, name: str) -> str:
    devices = plan.info(case.op, name).devices
    if plan.device == "cpu":
        if Runs.CPU not in devices and Runs.INTERPRETER not in devices:
            return f"runs only on {' and '.join(devices)}; this run is on the CPU"
        if case.streams > 1:
            return "streams exist only on CUDA devices"
        if case.timing.mode is Mode.GRAPH:
            return "CUDA graphs exist only on CUDA devices"
    elif Runs.CUDA not in devices:
        return f"runs only on {' and '.join(devices)}; this run is on a CUDA device"
    return ""


def _write_log(path: Path, entry: Entry) -> None:
    """One file a case; what an implementation printed leaves the journal for it."""
    parts: dict[str, list[str]] = {}
    for outcome in entry.outcomes:
        if outcome.log.strip():
            parts.setdefault(outcome.log, []).append(outcome.implementation)
        outcome.log = ""
    if parts:
        path.write_text(
            "".join(f"=== {', '.join(names)}\n{log.rstrip()}\n" for log, names in parts.items())
        )

"""Measures the cases of a pass one after another; each is journaled before the next starts."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import Protocol

from nsabench.assessment import labels
from nsabench.execution.folder import RunFolder
from nsabench.execution.journal import Journal
from nsabench.execution.passes import Pass
from nsabench.execution.supervisor.executor import Executor
from nsabench.execution.supervisor.group import Group
from nsabench.execution.supervisor.killed import Killed
from nsabench.model.journal import Begun, Entry
from nsabench.model.plan import Plan, PlannedCase


def _begin(journal: Journal, pass_: Pass, case_id: str, implementations: list[str]) -> None:
    journal.begin_attempt(
        Begun(
            pass_name=pass_.name,
            case_id=case_id,
            implementations=implementations,
        )
    )


class Progress(Protocol):
    """Told what happens; shows it to a person or to nobody."""

    def case_started(self, planned: PlannedCase, number: int, total: int) -> None: ...

    def case_finished(self, planned: PlannedCase, entry: Entry) -> None: ...

    def note(self, text: str) -> None: ...


def run(
    pass_: Pass,
    cells: Mapping[str, list[str]],
    plan: Plan,
    executor: Executor,
    journal: Journal,
    folder: RunFolder,
    progress: Progress,
) -> None:
    """Measure the cells that the pass has not journaled yet.

    An interrupt leaves a resumable journal.
    """
    done = journal.done(pass_.name)
    for number, (case_id, names) in enumerate(cells.items(), 1):
        if case_id in done:
            continue
        planned = plan.measured(case_id)
        if pass_.announcement:
            progress.note(pass_.announcement.format(case=labels.of_case(planned.case)))
        else:
            progress.case_started(planned, number, len(cells))
        start = time.monotonic()
        case = pass_.timing(planned.case)
        group = Group(
            plan,
            case,
            names,
            executor,
            pass_.on_loss,
            pass_.first_session,
            begin=partial(_begin, journal, pass_, case_id),
            killed=Killed.of(journal.contents, pass_.name, case_id),
            partial=pass_.partial,
        )
        entry = group.measure(pass_.name)
        entry.wall_s = time.monotonic() - start
        folder.write_log(entry)
        journal.append(entry)
        if not pass_.announcement:
            progress.case_finished(planned, entry)

"""Verdicts that hang on little are measured once more, in another process, before they count."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from nsabench.assessment import labels
from nsabench.assessment.verdict import Judgement, Key, hangs_on_little
from nsabench.execution.journal import Confirmation, Journal
from nsabench.execution.supervisor.executor import Executor, GroupLost
from nsabench.execution.supervisor.retry import cooled, unless_lost_early
from nsabench.model.plan import Plan

# Sessions of a case count from 1; a confirmation's must be none of them.
SESSION = 1_000_000


def doubtful(judgements: Mapping[Key, Judgement]) -> dict[str, list[str]]:
    """By case, the best baseline and the candidates whose verdict hangs on little."""
    found: dict[str, list[str]] = {}
    for (case_id, name), judgement in judgements.items():
        if hangs_on_little(judgement):
            found.setdefault(case_id, [judgement.best_baseline]).append(name)
    return found


def confirm(
    plan: Plan,
    cells: Mapping[str, list[str]],
    executor: Executor,
    records: Journal,
    on_case: Callable[[str], None],
) -> None:
    """Measure the cells that are not confirmed yet. `executor`: one that the run did not use."""
    for case_id, names in cells.items():
        if case_id in records.confirmed:
            continue
        case = plan.by_id[case_id].case
        on_case(f"second look at {labels.of_case(case)}")
        line = Confirmation(case_id=case_id)
        ask = partial(executor.measure, case, names, SESSION)
        try:
            measured = cooled(partial(unless_lost_early, ask))
            line.outcomes, line.conditions = measured.outcomes, measured.conditions
            line.measuring_s = measured.measuring_s
        except GroupLost as lost:
            line.reason = lost.reason
        records.append(line)

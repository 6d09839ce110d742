"""The first look: every case, all its implementations interleaved in one process."""

from __future__ import annotations

from nsabench.execution.passes.contract import Judge, Pass
from nsabench.execution.supervisor.executor import WorkerExecutor
from nsabench.execution.supervisor.group import find_culprit
from nsabench.model.plan import Plan
from nsabench.model.vocabulary import PassName


def cells(plan: Plan, judge: Judge) -> dict[str, list[str]]:
    """Everything that is planned."""
    return {planned.id: list(planned.implementations) for planned in plan.cases}


PASS = Pass(
    name=PassName.FIRST_LOOK,
    cells=cells,
    start=WorkerExecutor.of_plan,
    on_loss=find_culprit,
    first_session=1,
)

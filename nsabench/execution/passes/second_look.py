"""The second look: a verdict that hangs on little is measured in another process, too."""

from __future__ import annotations

from nsabench.assessment.verdict import hangs_on_little
from nsabench.execution.passes.contract import Judge, Pass
from nsabench.execution.supervisor.executor import WorkerExecutor
from nsabench.execution.supervisor.group import give_up
from nsabench.model.plan import Plan
from nsabench.model.vocabulary import PassName


def cells(plan: Plan, judge: Judge) -> dict[str, list[str]]:
    """By case, the best baseline and the candidates whose verdict hangs on little."""
    doubtful: dict[str, list[str]] = {}
    for (case_id, name), judgement in judge().items():
        if hangs_on_little(judgement, plan.margin):
            doubtful.setdefault(case_id, [judgement.best_baseline]).append(name)
    return doubtful


PASS = Pass(
    name=PassName.SECOND_LOOK,
    cells=cells,
    start=WorkerExecutor.of_plan,
    on_loss=give_up,
    first_session=1_000_000,
    announcement="second look at {case}",
)

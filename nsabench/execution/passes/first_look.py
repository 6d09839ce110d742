"""The first look: every case, all its implementations interleaved in one process."""

from __future__ import annotations

from nsabench.execution.passes.contract import Judge, Pass
from nsabench.execution.protocol import Spare
from nsabench.execution.supervisor.executor import WorkerExecutor
from nsabench.execution.supervisor.group import find_culprit
from nsabench.model.case import RatioCI
from nsabench.model.plan import Plan
from nsabench.model.vocabulary import PassName

# Whoever takes less is measured sooner than it is known to be hopelessly behind.
LEAST_MS = 20.0
# A check may reject the best one later; then the second best is what a candidate is held to.
STAY = 2


def spares(plan: Plan) -> dict[str, Spare]:
    """A rule that promises so many rounds, or so much time, spares nobody; and who shares a source
    with a candidate is not spared: where that one wins, nobody looks whether it was slowed."""
    return {
        p.id: Spare(baselines=plan.clean_baselines(p), stay=STAY, least_ms=LEAST_MS)
        for p in plan.cases
        if isinstance(p.case.timing.stopping, RatioCI)
    }


def cells(plan: Plan, judge: Judge) -> dict[str, list[str]]:
    """Everything that is planned."""
    return {planned.id: list(planned.implementations) for planned in plan.cases}


PASS = Pass(
    name=PassName.FIRST_LOOK,
    cells=cells,
    start=WorkerExecutor.of_plan,
    spares=spares,
    on_loss=find_culprit,
    first_session=1,
)

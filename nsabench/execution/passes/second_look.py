"""The second look: a verdict that hangs on little is measured in another process, too."""

from __future__ import annotations

from nsabench.assessment.verdict import hangs_on_little
from nsabench.execution.passes.contract import Judge, Pass
from nsabench.execution.supervisor.executor import WorkerExecutor
from nsabench.execution.supervisor.group import give_up
from nsabench.model.plan import Plan
from nsabench.model.vocabulary import PassName


def cells(plan: Plan, judge: Judge) -> dict[str, list[str]]:
    """By case, the best baselines and the candidates with a verdict that hangs on little."""
    doubtful: dict[str, list[str]] = {}
    for (case_id, name), judgement in judge().items():
        little = [
            one
            for one in (judgement, judgement.queue)
            if one is not None and hangs_on_little(one, plan.margin)
        ]
        if little:
            # Baselines lead; those of two regimes may be two.
            beside = doubtful.setdefault(case_id, [])
            best = {one.best_baseline: 0 for one in little}
            doubtful[case_id] = [*dict.fromkeys([*best, *beside]), name]
    return doubtful


PASS = Pass(
    name=PassName.SECOND_LOOK,
    cells=cells,
    start=WorkerExecutor.of_plan,
    on_loss=give_up,
    first_session=1_000_000,
    announcement="second look at {case}",
)

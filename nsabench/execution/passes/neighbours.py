"""What shards on one host do to each other: the canary on each device while the others wait, then
on all at once.

Both come before everything else, since what they say bears on all of it, and a shard that cannot be
measured ends before the others have spent hours (`execution.neighbours`).
"""

from __future__ import annotations

from nsabench.execution.passes.contract import Beside, Judge, Pass
from nsabench.execution.passes.isolated_baselines import briefly
from nsabench.execution.supervisor.executor import WorkerExecutor
from nsabench.execution.supervisor.group import give_up
from nsabench.model.plan import Plan
from nsabench.model.vocabulary import PassName, Role


def cells(plan: Plan, judge: Judge) -> dict[str, list[str]]:
    """The baselines of the canary of a shard that has neighbours: no others are held to each other
    (`assessment.neighbours`)."""
    if not plan.neighbours or plan.canary is None:
        return {}
    infos = [plan.info(plan.canary.case.op, name) for name in plan.canary.implementations]
    baselines = [info.name for info in infos if info.role is Role.BASELINE]
    return {plan.canary.id: baselines} if baselines else {}


ALONE = Pass(
    name=PassName.ALONE,
    cells=cells,
    start=WorkerExecutor.of_plan,
    on_loss=give_up,
    first_session=4_000_000,
    timing=briefly,  # one device after the other, and all the others wait
    announcement="while the neighbours wait: {case}",
    beside=Beside.NOBODY,
)
TOGETHER = Pass(
    name=PassName.TOGETHER,
    cells=cells,
    start=WorkerExecutor.of_plan,
    on_loss=give_up,
    first_session=5_000_000,
    announcement="while the neighbours measure it, too: {case}",
    beside=Beside.ALL,
)

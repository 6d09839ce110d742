"""What shards on one host do to each other: the canary on each device while the others wait, then
on all at once.

Both come before everything else, since what they say bears on all of it, and a shard that cannot be
measured ends before the others have spent hours (`execution.neighbours`).
"""

from __future__ import annotations

from nsabench.execution.passes.contract import Beside, Judge, Pass
from nsabench.execution.supervisor.executor import WorkerExecutor
from nsabench.execution.supervisor.group import give_up
from nsabench.model.plan import Plan
from nsabench.model.vocabulary import PassName, Role


def cells(plan: Plan, judge: Judge) -> dict[str, list[str]]:
    """The canary of a shard that has neighbours, and the baselines of it: what they take is what
    counts, and one after another all shards wait."""
    if not plan.neighbours or plan.canary is None:
        return {}
    case, names = plan.canary.case, plan.canary.implementations
    baselines = [n for n in names if plan.info(case.op, n).role is Role.BASELINE]
    return {plan.canary.id: baselines or list(names)}


ALONE = Pass(
    name=PassName.ALONE,
    cells=cells,
    start=WorkerExecutor.of_plan,
    on_loss=give_up,
    first_session=4_000_000,
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

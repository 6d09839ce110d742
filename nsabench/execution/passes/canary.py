"""The canary: one case that all shards of a plan measure, so that hosts can be held to each other.

It is no case of the shard's own and has no record there: what counts are its medians, beside those
of the other shards (`assessment.canary`).
"""

from __future__ import annotations

from nsabench.execution.passes.contract import Judge, Pass
from nsabench.execution.supervisor.executor import WorkerExecutor
from nsabench.execution.supervisor.group import give_up
from nsabench.model.plan import Plan
from nsabench.model.vocabulary import PassName


def cells(plan: Plan, judge: Judge) -> dict[str, list[str]]:
    """The one case of a shard; none of a whole plan."""
    return {plan.canary.id: list(plan.canary.implementations)} if plan.canary is not None else {}


PASS = Pass(
    name=PassName.CANARY,
    cells=cells,
    start=WorkerExecutor.of_plan,
    on_loss=give_up,
    first_session=3_000_000,
    announcement="the case that all shards measure: {case}",
)

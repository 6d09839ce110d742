"""Baselines of cases with a verdict `faster`, timed where no candidate was ever imported.

Whoever shares a process with the baselines can slow them: threads that go on between its calls,
work on a stream of its own, a fragmented allocator. What they take without it decides.
"""

from __future__ import annotations

from nsabench.assessment.verdict import Judgement
from nsabench.execution.passes.contract import Judge, Pass
from nsabench.execution.protocol import Spare
from nsabench.execution.supervisor.executor import WorkerExecutor
from nsabench.execution.supervisor.group import leave_out_suspect
from nsabench.model.case import Case, RatioCI
from nsabench.model.plan import Plan
from nsabench.model.vocabulary import PassName, Verdict

# What is asked is whether medians moved by more than `verdict.DRIFT`; that takes few samples.
FEW = RatioCI(min_rounds=10, max_rounds=10, budget_s=0.5)
WARMUP_S = 0.01  # the device is warm: each is called by turns with the others, and until it settles


def spares(plan: Plan) -> dict[str, Spare]:
    """Of the baselines only the best is asked for."""
    return {p.id: Spare(baselines=plan.clean_baselines(p)) for p in plan.cases}


def cells(plan: Plan, judge: Judge) -> dict[str, list[str]]:
    """By case with a verdict `faster`, the baselines of clean sources that it is held to."""
    won = {case_id for (case_id, _), judgement in judge().items() if _wins(judgement)}
    baselines = {p.id: plan.clean_baselines(p) for p in plan.cases if p.id in won}
    return {case_id: names for case_id, names in baselines.items() if names}


def _wins(judgement: Judgement) -> bool:
    """Whether it is faster in any regime."""
    regimes = (judgement, judgement.queue)
    return any(one is not None and one.verdict is Verdict.FASTER for one in regimes)


def briefly(case: Case) -> Case:
    """The case with fewer inputs, calls to warm up and samples."""
    warmup_s = min(case.timing.warmup_s, WARMUP_S)
    few = {"rotate": 2, "stopping": FEW, "warmup_s": warmup_s}
    timing = case.timing.model_copy(update=few)
    return case.model_copy(update={"timing": timing})


PASS = Pass(
    name=PassName.ISOLATED_BASELINES,
    cells=cells,
    start=WorkerExecutor.without_candidates,
    spares=spares,
    on_loss=leave_out_suspect,
    first_session=2_000_000,
    timing=briefly,
    announcement="baselines of {case} without the candidates",
    partial=True,
)

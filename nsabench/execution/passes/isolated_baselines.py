"""Baselines of cases with a verdict `faster`, timed where no candidate was ever imported.

Whoever shares a process with the baselines can slow them: threads that go on between its calls,
work on a stream of its own, a fragmented allocator. What they take without it decides. A baseline
that comes with a candidate, from the same package, is timed where that package is the only one that
brings any.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial

from nsabench.assessment.verdict import Judgement, Key
from nsabench.execution.compilation.jobs import LIMIT_S
from nsabench.execution.passes.contract import Judge, Pass
from nsabench.execution.protocol import Spare
from nsabench.execution.supervisor.executor import WorkerExecutor
from nsabench.execution.supervisor.group import leave_out_suspect
from nsabench.model.case import Case, RatioCI
from nsabench.model.plan import Plan
from nsabench.model.source import Source
from nsabench.model.vocabulary import PassName, Verdict

# What is asked is whether medians moved by more than `verdict.DRIFT`; that takes few samples.
FEW = RatioCI(min_rounds=10, max_rounds=10, budget_s=0.5)
SESSIONS = 10_000  # more than a pass begins
WARMUP_S = 0.01  # the device is warm: each is called by turns with the others, and until it settles


def spares(plan: Plan) -> dict[str, Spare]:
    """Of the baselines only the best is asked for."""
    return {p.id: Spare(baselines=plan.clean_baselines(p)) for p in plan.cases}


def variants(plan: Plan) -> list[Pass]:
    """The pass once more for each source that brings baselines and candidates."""
    return [_with(rival, number) for number, rival in enumerate(plan.rivals, 1)]


def _with(rival: Source, number: int) -> Pass:
    """number: of the source, by which its sessions are told from those of others."""

    def baselines(plan: Plan) -> dict[str, list[str]]:
        return {p.id: plan.baselines_of(rival, p) for p in plan.cases}

    def cells(plan: Plan, judge: Judge) -> dict[str, list[str]]:
        """Where a candidate of another source wins."""
        won = {
            case_id
            for case_id, name in _winners(judge)
            if plan.info(plan.by_id[case_id].case.op, name).source != rival
        }
        return _held_to(baselines(plan), won)

    return replace(
        PASS,
        rival=rival,
        cells=cells,
        spares=lambda plan: {id_: Spare(baselines=names) for id_, names in baselines(plan).items()},
        start=partial(WorkerExecutor.with_rival, rival=rival),
        timing=patiently,
        first_session=PASS.first_session + number * SESSIONS,
        announcement="baselines of {case} with {rival} alone",
        variants=lambda plan: (),
    )


def cells(plan: Plan, judge: Judge) -> dict[str, list[str]]:
    """By case with a verdict `faster`, the baselines of clean sources that it is held to."""
    return _held_to(
        {p.id: plan.clean_baselines(p) for p in plan.cases},
        {case_id for case_id, _ in _winners(judge)},
    )


def _winners(judge: Judge) -> set[Key]:
    return {key for key, judgement in judge().items() if _wins(judgement)}


def _held_to(baselines: Mapping[str, list[str]], won: Collection[str]) -> dict[str, list[str]]:
    return {case_id: names for case_id, names in baselines.items() if names and case_id in won}


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


def patiently(case: Case) -> Case:
    """The same, and first calls may compile: nothing that was compiled ahead is at hand."""
    return briefly(case).model_copy(update={"timeout_s": max(case.timeout_s, LIMIT_S)})


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
    variants=variants,
)

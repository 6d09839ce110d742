"""Baselines of cases with a verdict `faster`, timed where no candidate was ever imported.

Whoever shares a process with the baselines can slow them: threads that go on between its calls,
work on a stream of its own, a fragmented allocator. What they take without it decides. A baseline
that comes with a candidate, from the same package, is timed where everything was imported but the
source of the candidate that is held to it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial

from nsabench.assessment.verdict import Judgement
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


def others(plan: Plan) -> list[Pass]:
    """The pass once more for each source of candidates that are held to baselines of another's."""
    foreign = sorted(plan.sources.keys() - plan.clean_sources.keys())
    return [
        _without(Source(source), number)
        for number, source in enumerate(foreign, 1)
        if any(plan.rival_baselines(p, Source(source)) for p in plan.cases)
    ]


def _without(source: Source, number: int) -> Pass:
    """number: of the source, by which its sessions are told from those of others."""

    def rivals(plan: Plan) -> dict[str, list[str]]:
        return {p.id: plan.rival_baselines(p, source) for p in plan.cases}

    def cells(plan: Plan, judge: Judge) -> dict[str, list[str]]:
        return _held_to(rivals(plan), _won(plan, judge, of=source))

    return replace(
        PASS,
        without=source,
        cells=cells,
        spares=lambda plan: {id_: Spare(baselines=names) for id_, names in rivals(plan).items()},
        start=partial(WorkerExecutor.without_source, source=source),
        first_session=PASS.first_session + number * SESSIONS,
        announcement=f"baselines of {{case}} without {source.name}",
        others=lambda plan: (),
    )


def cells(plan: Plan, judge: Judge) -> dict[str, list[str]]:
    """By case with a verdict `faster`, the baselines of clean sources that it is held to."""
    return _held_to({p.id: plan.clean_baselines(p) for p in plan.cases}, _won(plan, judge))


def _won(plan: Plan, judge: Judge, of: Source | None = None) -> set[str]:
    """The cases that a candidate of a source wins; None: of any."""
    return {
        case_id
        for (case_id, name), judgement in judge().items()
        if _wins(judgement) and of in (None, plan.info(plan.by_id[case_id].case.op, name).source)
    }


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


PASS = Pass(
    name=PassName.ISOLATED_BASELINES,
    cells=cells,
    start=WorkerExecutor.without_candidates,
    spares=spares,
    on_loss=leave_out_suspect,
    first_session=2_000_000,
    timing=briefly,
    announcement="baselines of {case} without the candidates",
    others=others,
)

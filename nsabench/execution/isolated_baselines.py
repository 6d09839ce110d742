"""Baselines of cases with a verdict `faster`, timed where no candidate was ever imported.

Whoever shares a process with the baselines can slow them: threads that go on between its calls,
work on a stream of its own, a fragmented allocator. What they take without it decides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from nsabench.assessment import labels
from nsabench.assessment.verdict import Judgement, Key
from nsabench.execution.journal import Apart, Journal
from nsabench.execution.supervisor.executor import Executor, GroupLost, WorkerExecutor
from nsabench.execution.supervisor.retry import cooled, unless_lost_early
from nsabench.model.case import Case, RatioCI
from nsabench.model.outcome import Outcome
from nsabench.model.plan import Plan, PlannedCase
from nsabench.model.vocabulary import Role, Verdict

# Sessions of a case count from 1, that of its confirmation is a million.
SESSION = 2_000_000
# What is asked is whether medians moved by more than `verdict.DRIFT`; that takes few samples.
FEW = RatioCI(min_rounds=10, max_rounds=10, budget_s=0.5)


def clean_sources(plan: Plan) -> dict[str, str]:
    """The sources that no candidate of the plan comes from, with their digests."""
    foreign = {i.source for i in plan.implementations if i.role is Role.CANDIDATE}
    return {source: d for source, d in plan.sources.items() if source not in foreign}


def start_worker(plan: Plan) -> WorkerExecutor:
    """An executor whose workers import the clean sources and nothing else."""
    clean = clean_sources(plan)
    kernels = Path(plan.kernels) if plan.kernels else None
    if kernels is not None and not any(s.startswith(f"{kernels.name}@") for s in clean):
        kernels = None
    ops_file = Path(plan.ops) if plan.ops else None
    return WorkerExecutor(plan.device, kernels, sources=clean, ops_file=ops_file)


def wanted(plan: Plan, judgements: Mapping[Key, Judgement]) -> dict[str, list[str]]:
    """By case with a verdict `faster`, the baselines of clean sources."""
    clean = clean_sources(plan)
    won = {case_id for (case_id, _), j in judgements.items() if j.verdict is Verdict.FASTER}
    found = {p.id: _clean_baselines(plan, p, clean) for p in plan.cases if p.id in won}
    return {case_id: names for case_id, names in found.items() if names}


def _clean_baselines(plan: Plan, planned: PlannedCase, clean: Mapping[str, str]) -> list[str]:
    infos = [plan.info(planned.case.op, name) for name in planned.implementations]
    return [i.name for i in infos if i.role is Role.BASELINE and i.source in clean]


def measure(
    plan: Plan,
    cases: Mapping[str, list[str]],
    executor: Executor,
    records: Journal,
    on_case: Callable[[str], None],
) -> None:
    """Time the baselines of the cases that were not yet timed apart."""
    for case_id, names in cases.items():
        if case_id in records.apart:
            continue
        case = plan.by_id[case_id].case
        on_case(f"baselines of {labels.of_case(case)} without the candidates")
        records.append(_timed(case, names, executor))


def _timed(case: Case, names: Sequence[str], executor: Executor) -> Apart:
    """Time them together. Whoever ends the worker is left out of the next attempt."""
    line = Apart(case_id=case.id)
    left = list(names)
    while left:
        ask = partial(executor.measure, _briefly(case), left, SESSION)
        try:
            measured = cooled(partial(unless_lost_early, ask))
        except GroupLost as lost:
            if lost.suspect not in left:
                line.reason = lost.reason
                break
            left.remove(lost.suspect)
            line.outcomes.append(
                Outcome(
                    implementation=lost.suspect,
                    status=lost.status,
                    reason=lost.reason,
                    session=SESSION,
                )
            )
        else:
            line.outcomes += measured.outcomes
            line.conditions, line.measuring_s = measured.conditions, measured.measuring_s
            break
    return line


def _briefly(case: Case) -> Case:
    timing = case.timing.model_copy(update={"rotate": 2, "stopping": FEW})
    return case.model_copy(update={"timing": timing})

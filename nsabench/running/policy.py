"""Decide what to measure next from the plan and the log of a run.

After the main pass, a second process confirms verdicts that are close to a limit. Then the isolated
pass, which imports no candidate, times baselines again if a candidate was faster in their case, and
alternatives if a candidate or baseline was faster. Last comes the case that all shards measure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from nsabench.model.case import Case, RatioCI
from nsabench.model.job import ALL_STAY, EarlyExit, Job
from nsabench.model.log import Log
from nsabench.model.plan import Plan, PlannedCase
from nsabench.model.record import Comparison
from nsabench.model.vocabulary import Purpose, Reference, Role
from nsabench.verdicts.attempts import CaseState, state_of
from nsabench.verdicts.results import assess
from nsabench.verdicts.verdict import needs_confirmation, needs_isolated

# A baseline whose calls take less is always measured: to find it far behind would take longer.
LEAST_MS = 20.0
STAY = 2  # right baselines that stay: if a check rejects the best, the second one decides
# Few rounds are enough to show whether isolated medians differ by more than `verdict.DRIFT`.
FEW = RatioCI(min_rounds=10, max_rounds=10, budget_s=0.5)
FEW_SETS = 2
BRIEF_WARMUP_S = 0.01  # the device is warm already

MakeComparisons = Callable[[Plan, Log], Sequence[Comparison]]


def make_comparisons(plan: Plan, log: Log) -> list[Comparison]:
    return assess(plan, log).comparisons()


def next_jobs(plan: Plan, log: Log, compare: MakeComparisons = make_comparisons) -> list[Job]:
    """Return the jobs of the first incomplete pass. Call again after a death or a disturbance."""
    return (
        list(plan_main(plan, log))
        or list(_plan_confirmation(plan, log, compare))
        or list(_plan_isolated(plan, log, compare))
        or plan_canary(plan, log)
    )


def plan_canary(plan: Plan, log: Log) -> list[Job]:
    if plan.canary is None:
        return []
    return list(_plan_job(plan, log, Purpose.CANARY, plan.canary, plan.canary.implementations))


def plan_main(plan: Plan, log: Log) -> Iterator[Job]:
    for planned in plan.cases:
        early_exit = ALL_STAY
        # `FixedCount` promises rounds to all. Only baselines from sources without a candidate take
        # part in an early exit, since others could not be timed in isolation.
        if isinstance(planned.case.timing.stopping, RatioCI):
            baselines = tuple(plan.list_clean(planned, Role.BASELINE))
            early_exit = EarlyExit(baselines=baselines, stay=STAY, least_ms=LEAST_MS)
        yield from _plan_job(
            plan, log, Purpose.MAIN, planned, planned.implementations, early_exit=early_exit
        )


def _plan_confirmation(plan: Plan, log: Log, compare: MakeComparisons) -> Iterator[Job]:
    comparisons = compare(plan, log.only(Purpose.MAIN))
    close: dict[str, list[str]] = {}
    for comparison in comparisons:
        if needs_confirmation(comparison, plan.margin):
            case_id = comparison.case_id
            names = [comparison.against, *close.get(case_id, []), comparison.implementation]
            close[case_id] = list(dict.fromkeys(names))
    for case_id, names in close.items():
        yield from _plan_job(plan, log, Purpose.CONFIRMATION, plan.by_id[case_id], names)


def _plan_isolated(plan: Plan, log: Log, compare: MakeComparisons) -> Iterator[Job]:
    comparisons = compare(plan, log.only(Purpose.MAIN, Purpose.CONFIRMATION))
    needed = [comparison for comparison in comparisons if needs_isolated(comparison)]
    won = {c.case_id for c in needed if c.reference is Reference.BASELINE}
    pays = {c.case_id for c in needed if c.reference is Reference.ALTERNATIVE}
    for planned in plan.cases:
        baselines = plan.list_clean(planned, Role.BASELINE) if planned.id in won else []
        alternatives = plan.list_clean(planned, Role.ALTERNATIVE) if planned.id in pays else []
        if baselines or alternatives:
            yield from _plan_job(
                plan,
                log,
                Purpose.ISOLATED,
                _shorten(planned),
                [*baselines, *alternatives],
                sources=plan.clean_sources,
                early_exit=EarlyExit(baselines=tuple(baselines)),
            )


def _shorten(planned: PlannedCase) -> PlannedCase:
    case, timing = planned.case, planned.case.timing
    few = {"rotate": FEW_SETS, "stopping": FEW, "warmup_s": min(timing.warmup_s, BRIEF_WARMUP_S)}
    brief = case.model_copy(update={"timing": timing.model_copy(update=few)})
    return planned.model_copy(update={"case": brief})


def _plan_job(
    plan: Plan,
    log: Log,
    purpose: Purpose,
    planned: PlannedCase,
    names: Iterable[str],
    *,
    sources: Iterable[str] | None = None,
    early_exit: EarlyExit = ALL_STAY,
) -> Iterator[Job]:
    state = state_of(plan, log, purpose, planned, tuple(names))
    if state.next is not None:
        imported = plan.sources if sources is None else sources
        yield make_job(planned.case, state, imported, early_exit)


def make_job(
    case: Case, state: CaseState, sources: Iterable[str], early_exit: EarlyExit = ALL_STAY
) -> Job:
    assert state.next is not None
    return Job(
        purpose=state.purpose,
        case=case,
        sources=tuple(sorted(sources)),
        attempt=state.attempts + 1,
        implementations=state.next.implementations,
        pause_s=state.next.pause_s,
        early_exit=early_exit,
    )

"""Revise verdicts by the later passes: a second process, and baselines without candidates."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from nsabench.checks.cases import by_case
from nsabench.checks.timing import clock_spread, find_disturbances
from nsabench.model.measurement import Observation
from nsabench.model.plan import Plan
from nsabench.model.record import Comparison, Record
from nsabench.model.vocabulary import BENIGN, MARGIN, Reference, Regime, Role, Status, Verdict
from nsabench.verdicts.attempts import CaseState
from nsabench.verdicts.records import set_failed
from nsabench.verdicts.statistics import MIN_ROUNDS_EVER, quantile, ratio_of_independent_medians
from nsabench.verdicts.verdict import (
    TooFewRounds,
    add_reason,
    decide_verdict,
    make_inconclusive,
    paired_ratio,
)

# Medians of one implementation in two processes differ by as much as this, and their ratios by a
# standard deviation of 0.6 % (docs/explanation/measurement.md).
DRIFT = 0.03
NEAR = 0.01  # closer to the margin or to a verdict's own bound, a second process decides
ALL_OWN = "all its baselines come from its own package: none was timed without it"


def revise_records(
    plan: Plan,
    records: Sequence[Record],
    confirmations: Mapping[str, CaseState],
    isolated: Mapping[str, CaseState],
) -> list[Record]:
    """Return the records of a run after the later passes so far, given by case."""
    cases = by_case(records)
    revised = []
    for record in records:
        if record.role in (Role.CANDIDATE, Role.BASELINE):
            case_id, planned = record.case_id, plan.by_id[record.case_id]
            baselines = plan.list_clean(planned, Role.BASELINE)
            record = revise(
                record,
                cases[case_id],
                confirmations.get(case_id),
                isolated.get(case_id),
                [*baselines, *plan.list_clean(planned, Role.ALTERNATIVE)],
                plan.margin,
            )
            if plan.sources and not baselines:
                record = _note_own_baselines(record)
        revised.append(record)
    return revised


def _note_own_baselines(record: Record) -> Record:
    comparisons = tuple(
        replace(c, reason="; ".join(filter(None, (c.reason, ALL_OWN))))
        if c.verdict is Verdict.FASTER
        else c
        for c in record.comparisons
    )
    return replace(record, comparisons=comparisons)


def needs_confirmation(comparison: Comparison, margin: float = MARGIN) -> bool:
    """Return whether a second process might well disagree on the verdict or the margin."""
    ratio, lo, hi = comparison.ratio, comparison.lo, comparison.hi
    if ratio is None or lo is None or hi is None:
        return False
    at_margin = lo < margin * (1 + NEAR) and hi > margin * (1 - NEAR)
    by_little = abs(ratio - 1) < DRIFT or abs(lo - 1) < NEAR or abs(hi - 1) < NEAR
    # An inconclusive verdict stays so, and `same` is far from the margin.
    return comparison.verdict in (Verdict.FASTER, Verdict.SLOWER) and (by_little or at_margin)


def revise(
    record: Record,
    case: Sequence[Record],
    confirmation: CaseState | None = None,
    isolated: CaseState | None = None,
    clean: Collection[str] = (),
    margin: float = MARGIN,
) -> Record:
    """Return the record of a candidate or a baseline after the later passes over its case.

    clean: baselines and alternatives from other packages than all candidates.
    """
    if confirmation is not None and record.role is Role.CANDIDATE and record.status is Status.OK:
        for observation in confirmation.observations:
            is_same = observation.implementation == record.implementation
            if is_same and observation.status not in BENIGN:
                return _fail_in_second_process(record, observation)
    roles_timed = {r.role for r in case if r.implementation in clean}
    comparisons = []
    for comparison in record.comparisons:
        if confirmation is not None and needs_confirmation(comparison, margin):
            comparison = _confirm_verdict(comparison, confirmation, margin)
        if comparison.reference is Reference.BASELINE:
            role, is_won = Role.BASELINE, comparison.verdict is Verdict.FASTER
        else:
            role, is_won = Role.ALTERNATIVE, comparison.lo is not None and comparison.lo > 1
        if is_won and isolated is not None and role in roles_timed:
            comparison = _compare_with_isolated(comparison, record, case, isolated, clean)
        comparisons.append(comparison)
    return replace(record, comparisons=tuple(comparisons))


def _fail_in_second_process(record: Record, observation: Observation) -> Record:
    reason = f"in a second process: {observation.reason}"
    failed = set_failed(record, observation.model_copy(update={"reason": reason}))
    why = f"a second process found it {observation.status}: {observation.reason}"
    comparisons = tuple(
        replace(failed.comparison(c.regime, c.reference), verdict=Verdict.INVALID, reason=why)
        for c in record.comparisons
        if c.verdict is not None
    )
    return replace(failed, comparisons=comparisons)


def _confirm_verdict(comparison: Comparison, second: CaseState, margin: float) -> Comparison:
    timed = {
        o.implementation: timings
        for o in second.observations
        if (timings := o.timings(comparison.regime)).time_ms
    }
    conditions = list(second.conditions.values())

    def unconfirmed(why: str) -> Comparison:
        reason = f"a second process could not confirm the verdict: {why}"
        return make_inconclusive(comparison, reason)

    disturbance = next(find_disturbances(conditions), "")
    if disturbance:
        return unconfirmed(disturbance)
    if comparison.implementation not in timed or comparison.against not in timed:
        return unconfirmed(second.reason or "it was not timed again")
    try:
        seen = paired_ratio(timed[comparison.against], timed[comparison.implementation])
    except TooFewRounds as few:
        return unconfirmed(str(few))
    seen = seen.widened(clock_spread(conditions))
    assert comparison.lo is not None
    verdict, _ = decide_verdict(seen, comparison.regime)
    agreed = verdict is comparison.verdict
    if agreed and (seen.lo >= margin) == (comparison.lo >= margin):
        return comparison
    why = f"a second process saw a ratio of {seen.value:.3f} ({seen.lo:.3f} to {seen.hi:.3f})"
    return replace(
        add_reason(comparison, why),
        verdict=comparison.verdict if agreed else Verdict.INCONCLUSIVE,
        # Decisions take the lower bound, so both processes must have passed the margin.
        lo=min(comparison.lo, seen.lo),
    )


def _compare_with_isolated(
    comparison: Comparison,
    record: Record,
    case: Sequence[Record],
    isolated: CaseState,
    clean: Collection[str],
) -> Comparison:
    """Compare with the best isolated reference if the candidate slowed those in its process."""
    is_baseline = comparison.reference is Reference.BASELINE
    role = Role.BASELINE if is_baseline else Role.ALTERNATIVE
    roles = {r.implementation: r.role for r in case}
    timed = {
        o.implementation: times
        for o in isolated.observations
        if roles.get(o.implementation, Role.BASELINE) is role
        and (times := o.timings(comparison.regime).time_ms)
    }
    who, why = f"the {role}s", next(find_disturbances(list(isolated.conditions.values())), "")
    if not why and is_baseline:
        who, why = _find_untimed_baseline(comparison, record, case, isolated, clean, timed)
    elif not why and comparison.against not in timed:
        why = next(
            (o.reason for o in isolated.observations if o.implementation == comparison.against), ""
        )
        why = why or isolated.reason or f"{comparison.against} was not timed there"
    if why:
        reason = f"{who} could not be timed apart from the candidates: {why}"
        if is_baseline:
            return make_inconclusive(comparison, reason)
        return replace(add_reason(comparison, reason), ratio=None, lo=None, hi=None)
    best = min(timed, key=lambda name: quantile(timed[name], 0.5))
    return _hold_to_isolated(comparison, record, best, timed[best], isolated)


def _find_untimed_baseline(
    comparison: Comparison,
    record: Record,
    case: Sequence[Record],
    isolated: CaseState,
    clean: Collection[str],
    timed: Mapping[str, Sequence[float]],
) -> tuple[str, str]:
    baselines = "the baselines"
    leader = next((r for r in case if r.implementation == comparison.against), None)
    # A baseline from the candidate's package always runs with it.
    if leader is None or leader.source == record.source:
        return baselines, "no other was valid beside it"
    best = leader.implementation
    valid = [
        r.implementation
        for r in case
        if r.role is Role.BASELINE and r.implementation in clean and r.median_ms
    ]
    observations = {o.implementation: o for o in isolated.observations}
    if isolated.reason and not {best, *valid} <= observations.keys():
        return baselines, isolated.reason
    if best not in observations:
        return best, "it comes with another candidate: measure without that one"
    for name in (best, *valid):
        # Without its time, nothing shows whether the candidate slowed it.
        if name in observations and observations[name].status is not Status.OK:
            return name, observations[name].reason
    if best not in timed:
        return best, "it was far behind there, and not called so"
    best = min(timed, key=lambda name: quantile(timed[name], 0.5))
    if comparison.regime is not Regime.QUEUE and len(timed[best]) < MIN_ROUNDS_EVER:
        # It was dropped early, because one that then failed was far ahead.
        return best, "it was called a few times only"
    return baselines, ""


def _hold_to_isolated(
    comparison: Comparison, record: Record, best: str, isolated: list[float], state: CaseState
) -> Comparison:
    assert comparison.ratio is not None and comparison.lo is not None
    isolated_ms = quantile(isolated, 0.5)
    times = record.timings(comparison.regime).time_ms
    beside_ms = comparison.ratio * quantile(times, 0.5)
    spread = clock_spread([*state.conditions.values(), record.conditions])
    if beside_ms <= isolated_ms / spread * (1 + DRIFT):
        return comparison
    moved = ratio_of_independent_medians(isolated, times).widened(spread)
    # Two processes differ by so much without a reason.
    lo = min(comparison.lo, moved.lo / (1 + DRIFT))
    why = (
        f"{best} takes {isolated_ms:.3g} ms in a process that never imported a candidate, and the "
        f"best {comparison.reference} beside it {beside_ms:.3g} ms: the ratio to the former counts;"
        f" to the latter would be {comparison.ratio:.3f}"
    )
    verdict = comparison.verdict
    if verdict is not None:
        verdict = Verdict.FASTER if lo > 1 else Verdict.INCONCLUSIVE
    return replace(
        add_reason(comparison, why),
        verdict=verdict,
        ratio=min(comparison.ratio, moved.value),
        lo=lo,
        hi=moved.hi,
    )

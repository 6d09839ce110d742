"""Decide the verdict of a candidate on a case: its ratio to the best valid baseline beside it.

A baseline is beside a candidate if one process timed both. Later passes revise the verdict: a
second process confirms it, and an isolated one, without candidates, times the baselines.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from nsabench.checks.cases import best_baseline, by_case, fastest
from nsabench.checks.finding import Effect, Finding
from nsabench.checks.timing import clock_spread, find_time_doubts
from nsabench.model.measurement import Bursts, Observation, Samples
from nsabench.model.plan import Plan
from nsabench.model.record import GREAT_RATIO, Comparison, Record
from nsabench.model.vocabulary import (
    BENIGN,
    MARGIN,
    NO_SPECIALISED,
    Kind,
    Reference,
    Regime,
    Role,
    Status,
    Verdict,
)
from nsabench.verdicts.attempts import CaseState
from nsabench.verdicts.records import set_failed
from nsabench.verdicts.statistics import (
    MIN_ROUNDS_EVER,
    Ratio,
    quantile,
    ratio_of_independent_medians,
    ratio_of_rounds,
)

# Ratios in two runs differ by up to this much, and smaller differences are of no use.
SAME_BAND = 0.01
# A host is noisier than a device, and bursts are few: by `SAME_BAND`, equal code would too often be
# faster or slower.
SAME_BAND_IN_QUEUE = 0.02
BEHIND = 2.0  # a specialised baseline slower than this multiple of the best does not count
# Medians of one implementation in two processes differ by up to this share
# (docs/explanation/measurement.md).
DRIFT = 0.03
NEAR = 0.01  # if an end of an interval is this near 1, or the interval the margin: confirm
_ROLES = {Reference.BASELINE: Role.BASELINE, Reference.ALTERNATIVE: Role.ALTERNATIVE}
NOT_APART = "could not be timed apart from the candidates"
ALL_OWN = "each baseline's package has a candidate, so none was timed without candidates"


def compare_records(records: Sequence[Record], findings: Iterable[Finding]) -> list[Record]:
    """Compare checked records with baselines and alternatives in every regime of their cases."""
    cases = by_case(records)
    by_case_id: dict[str, list[Finding]] = {case_id: [] for case_id in cases}
    for finding in findings:
        for case_id in [finding.case_id] if finding.case_id else by_case_id:
            if case_id in by_case_id:
                by_case_id[case_id].append(finding)
    compared = []
    for record in records:
        case = cases[record.case_id]
        baselines = _compare_with_baselines(record, case, by_case_id[record.case_id])
        alternatives = _compare_with_alternatives(record, case)
        compared.append(replace(record, comparisons=(*baselines, *alternatives)))
    return compared


def _compare_with_baselines(
    record: Record, case: Sequence[Record], findings: Sequence[Finding]
) -> Iterator[Comparison]:
    for regime in Regime:
        is_timed = case[0].regime is regime or any(r.timed_in(regime) is not None for r in case)
        if record.role is Role.CANDIDATE and is_timed:
            yield _judge_candidate(record, case, findings, regime)
        elif (timed := record.compared(regime)) is not None:
            yield timed


def _compare_with_alternatives(record: Record, case: Sequence[Record]) -> Iterator[Comparison]:
    if record.role not in (Role.CANDIDATE, Role.BASELINE):
        return
    for regime in Regime:
        timed = record.compared(regime)
        beside = [
            r
            for r in case
            if r.role is Role.ALTERNATIVE
            and r.attempt == record.attempt
            and r.timed_in(regime) is not None
        ]
        best = fastest(beside, regime)
        if timed is None or best is None:
            continue
        try:
            ratio = _measure_ratio(best, record, regime)
        except TooFewRounds:
            continue
        yield _set_ratio(replace(timed, reference=Reference.ALTERNATIVE), best, ratio)


def _set_ratio(timed: Comparison, best: Record, ratio: Ratio) -> Comparison:
    return replace(timed, against=best.implementation, ratio=ratio.value, lo=ratio.lo, hi=ratio.hi)


def _measure_ratio(best: Record, record: Record, regime: Regime) -> Ratio:
    ratio = paired_ratio(best.timings(regime), record.timings(regime))
    return ratio.widened(clock_spread([record.conditions]))


def _judge_candidate(
    record: Record, case: Sequence[Record], findings: Sequence[Finding], regime: Regime
) -> Comparison:
    timed = record.comparison(regime)
    if record.status is not Status.OK:
        verdict = None if record.status in BENIGN else Verdict.INVALID
        return replace(timed, verdict=verdict, reason=record.reason)
    speaking = [f for f in findings if f.regime in (None, regime)]
    for finding in speaking:
        # A finding about the run, such as a missed control, holds for every record.
        if finding.effect is Effect.INVALID and (finding.concerns(record) or finding.is_about_run):
            return replace(timed, verdict=Verdict.INVALID, reason=finding.sentence)
    if timed.median_ms is None:
        return make_inconclusive(timed, "parity only: it was not timed")
    best = best_baseline(case, beside=record, regime=regime)
    if best is None:
        return make_inconclusive(timed, "no valid baseline was timed beside it")
    try:
        ratio = _measure_ratio(best, record, regime)
    except TooFewRounds as few:
        return make_inconclusive(timed, str(few))
    verdict, why = decide_verdict(ratio, regime)
    timed = replace(_set_ratio(timed, best, ratio), verdict=verdict)
    timed = add_reason(timed, _note_own_baseline(case, record, best, regime))
    timed = add_reason(timed, why)
    for finding in speaking:
        if finding.effect is Effect.INCONCLUSIVE and finding.concerns(record):
            timed = make_inconclusive(timed, finding.sentence)
    return timed


def add_reason(comparison: Comparison, reason: str) -> Comparison:
    """Put a reason before a comparison's own reason, unless that contains it."""
    if reason in comparison.reason:
        return comparison
    return replace(comparison, reason="; ".join(filter(None, (reason, comparison.reason))))


def make_inconclusive(comparison: Comparison, reason: str) -> Comparison:
    return replace(add_reason(comparison, reason), verdict=Verdict.INCONCLUSIVE)


def _note_own_baseline(case: Sequence[Record], record: Record, best: Record, regime: Regime) -> str:
    same_source = [r for r in case if r.source == record.source]
    own = best_baseline(same_source, beside=record, regime=regime)
    if own is None or own.source == best.source:
        return ""
    own_ms, best_ms = own.median_in(regime) or 0.0, best.median_in(regime) or 0.0
    if own_ms >= best_ms:
        return ""
    return (
        f"{own.implementation}, a baseline from its own package, takes {own_ms:.3g} ms and does "
        f"not decide; {best.implementation} takes {best_ms:.3g} ms"
    )


class TooFewRounds(Exception):
    """Two implementations have too few common rounds for a useful interval."""


def paired_ratio(baseline: Samples | Bursts, candidate: Samples | Bursts) -> Ratio:
    """Return the ratio of medians over common rounds. Raises `TooFewRounds`."""
    first, second = (dict(zip(s.round, s.time_ms, strict=True)) for s in (baseline, candidate))
    common = [number for number in first if number in second]
    if len(common) < MIN_ROUNDS_EVER:
        have = "round has" if len(common) == 1 else "rounds have"
        raise TooFewRounds(
            f"only {len(common)} {have} both it and a baseline; {MIN_ROUNDS_EVER} are needed"
        )
    return ratio_of_rounds([first[n] for n in common], [second[n] for n in common])


def decide_verdict(ratio: Ratio, regime: Regime = Regime.DEVICE) -> tuple[Verdict, str]:
    """Return the verdict for a ratio and its interval, and why it is not clear."""
    value, lo, hi = ratio.value, ratio.lo, ratio.hi
    band = SAME_BAND_IN_QUEUE if regime is Regime.QUEUE else SAME_BAND
    if lo >= 1 - band and hi <= 1 + band:
        return Verdict.SAME, ""
    if lo > 1 and value > 1 + band:
        return Verdict.FASTER, ""
    if hi < 1 and value < 1 - band:
        return Verdict.SLOWER, ""
    return Verdict.INCONCLUSIVE, f"the 95 % interval of the ratio is {lo:.3f} to {hi:.3f}"


def find_caution(record: Record, case: Sequence[Record]) -> str:
    """Return `NO_SPECIALISED` if a great ratio rests on general baselines alone, else "".

    Such a ratio says what a mask or a gather costs, not what a kernel gains over another kernel.
    """
    ratios = [c.ratio for c in record.comparisons if c.reference is Reference.BASELINE]
    if not any(ratio is not None and ratio > GREAT_RATIO for ratio in ratios):
        return ""
    timed = [
        (r.kind, r.median_ms)
        for r in case
        if r.attempt == record.attempt
        and r.role is Role.BASELINE
        and not r.alongside
        and r.median_ms is not None
    ]
    best = min((ms for _, ms in timed), default=0.0)
    counting = {k for k, ms in timed if k is not Kind.SPECIALISED or ms <= BEHIND * best}
    return NO_SPECIALISED if counting == {Kind.GENERAL} else ""


def revise_records(
    plan: Plan,
    records: Sequence[Record],
    confirmations: Mapping[str, CaseState],
    isolated: Mapping[str, CaseState],
) -> list[Record]:
    """Return the records of a run after the later passes, whose states are given by case id."""
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


def needs_isolated(comparison: Comparison) -> bool:
    """Return whether a process without candidates must also time the references."""
    if comparison.reference is Reference.BASELINE:
        return comparison.verdict is Verdict.FASTER
    return comparison.lo is not None and comparison.lo > 1


def revise(
    record: Record,
    case: Sequence[Record],
    confirmation: CaseState | None = None,
    isolated: CaseState | None = None,
    clean: Collection[str] = (),
    margin: float = MARGIN,
) -> Record:
    """Return the record of a candidate or a baseline after the later passes over its case.
    `clean` names the baselines and alternatives from packages without a candidate."""
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
        if isolated and needs_isolated(comparison) and _ROLES[comparison.reference] in roles_timed:
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

    disturbance = next(find_time_doubts(conditions), "")
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
    """Compare with the isolated references, in case the candidate slowed those beside it."""
    times = _select_times(comparison, case, isolated)
    disturbance = next(find_time_doubts(list(isolated.conditions.values())), "")
    if disturbance:
        obstacle = f"the {_ROLES[comparison.reference]}s {NOT_APART}: {disturbance}"
    elif comparison.reference is Reference.ALTERNATIVE:
        obstacle = _find_missing_alternative(comparison.against, isolated, times)
    else:
        obstacle = _find_missing_baseline(comparison, record, case, isolated, clean, times)
    if not obstacle:
        return _lower_ratio(comparison, record, isolated, times)
    if comparison.reference is Reference.ALTERNATIVE:
        return replace(add_reason(comparison, obstacle), ratio=None, lo=None, hi=None)
    return make_inconclusive(comparison, obstacle)


def _select_times(
    comparison: Comparison, case: Sequence[Record], isolated: CaseState
) -> dict[str, list[float]]:
    """Return the isolated times of a call (ms) of each baseline, or of each alternative."""
    roles = {r.implementation: r.role for r in case}
    return {
        o.implementation: times
        for o in isolated.observations
        if roles.get(o.implementation, Role.BASELINE) is _ROLES[comparison.reference]
        and (times := o.timings(comparison.regime).time_ms)
    }


def _find_fastest(times: Mapping[str, Sequence[float]]) -> str:
    return min(times, key=lambda name: quantile(times[name], 0.5))


def _find_missing_alternative(against: str, isolated: CaseState, times: Collection[str]) -> str:
    if against in times:
        return ""
    own = next((o.reason for o in isolated.observations if o.implementation == against), "")
    why = own or isolated.reason or f"{against} was not timed there"
    return f"the alternatives {NOT_APART}: {why}"


def _find_missing_baseline(
    comparison: Comparison,
    record: Record,
    case: Sequence[Record],
    isolated: CaseState,
    clean: Collection[str],
    times: Mapping[str, Sequence[float]],
) -> str:
    """Return which isolated baseline is missing, and why, or an empty text."""
    against = comparison.against
    observed = {o.implementation: o for o in isolated.observations}
    sources = {r.implementation: r.source for r in case}
    valid = [r.implementation for r in case if r.role is Role.BASELINE and r.median_ms]
    deciding = [against, *(name for name in valid if name in clean)]
    # A baseline from the candidate's package always runs in a process with the candidate.
    if sources.get(against, record.source) == record.source:
        return f"the baselines {NOT_APART}: none from another package was valid"
    if isolated.reason and not observed.keys() >= {*deciding}:
        return f"the baselines {NOT_APART}: {isolated.reason}"
    if against not in observed:
        return f"{against} {NOT_APART}: its package has a candidate; measure without that candidate"
    for name in deciding:
        # Without its isolated time, nothing shows whether the candidate slowed this baseline.
        if name in observed and observed[name].status is not Status.OK:
            return f"{name} {NOT_APART}: {observed[name].reason}"
    if against not in times:
        return f"{against} {NOT_APART}: without these it was far behind, so it was left out"
    leader = _find_fastest(times)
    if comparison.regime is not Regime.QUEUE and len(times[leader]) < MIN_ROUNDS_EVER:
        # An early exit: a baseline that then failed was far ahead of it.
        return f"{leader} {NOT_APART}: it was called only a few times"
    return ""


def _lower_ratio(
    comparison: Comparison, record: Record, isolated: CaseState, times: Mapping[str, list[float]]
) -> Comparison:
    """Use the lower ratio if an isolated reference may well beat those beside the candidate."""
    assert comparison.ratio is not None and comparison.lo is not None
    fastest_name = _find_fastest(times)
    best, own = times[fastest_name], record.timings(comparison.regime).time_ms
    best_ms, beside_ms = quantile(best, 0.5), comparison.ratio * quantile(own, 0.5)
    spread = clock_spread([*isolated.conditions.values(), record.conditions])
    if beside_ms <= best_ms / spread * (1 + DRIFT):
        return comparison
    moved = ratio_of_independent_medians(best, own).widened(spread)
    # Medians in two processes differ by up to `DRIFT` without a cause.
    lo = min(comparison.lo, moved.lo / (1 + DRIFT))
    counting, other = sorted((comparison.ratio, moved.value))
    why = (
        f"{fastest_name} takes {best_ms:.3g} ms in a process without candidates, and the best "
        f"{comparison.reference} takes {beside_ms:.3g} ms in one with candidates: of the two "
        f"ratios, {counting:.3f} counts, and not {other:.3f}"
    )
    verdict = comparison.verdict
    if verdict is not None:
        verdict = Verdict.FASTER if lo > 1 else Verdict.INCONCLUSIVE
    is_isolated = counting == moved.value
    return replace(
        add_reason(comparison, why),
        verdict=verdict,
        against=fastest_name if is_isolated else comparison.against,
        isolated_ms=best_ms if is_isolated else None,
        ratio=counting,
        lo=lo,
        hi=moved.hi,
    )

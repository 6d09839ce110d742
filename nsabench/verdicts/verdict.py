"""The verdict of a candidate on a case: its ratio to the best valid baseline of its attempt."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from nsabench.checks.best_baseline import best_baseline, fastest
from nsabench.checks.clocks import clock_spread, disturbances
from nsabench.checks.finding import Effect, Finding
from nsabench.checks.series import by_case
from nsabench.model.measurement import Bursts, Samples
from nsabench.model.record import Comparison, Record
from nsabench.model.vocabulary import BENIGN, MARGIN, Reference, Regime, Role, Status, Verdict
from nsabench.verdicts.attempts import CaseState
from nsabench.verdicts.statistics import (
    MIN_ROUNDS_EVER,
    Ratio,
    paired,
    quantile,
    ratio_of_independent_medians,
    ratio_of_rounds,
)

# Medians of one implementation in two processes differ by as much as this, and their ratios by a
# standard deviation of 0.6 % (docs/explanation/measurement.md).
DRIFT = 0.03
# A second run moves ratios by as much as this, and smaller differences are of no use.
SAME_BAND = 0.01
# A host is noisier than a device, and eight bursts are few. With a noise of 2 % the band above
# calls 4 of 100 equal pairs unequal; this one calls fewer than 1.
SAME_BAND_IN_QUEUE = 0.02
NEAR = 0.01  # closer to the margin or to a verdict's own bound, a second process decides
ALL_OWN = "all its baselines come from its own package: none was timed without it"


def judge(records: Sequence[Record], findings: Iterable[Finding]) -> list[Record]:
    """Compare the records with baselines and alternatives in every regime of their cases.

    The records already have the statuses that the checks gave them.
    """
    cases = by_case(records)
    by_case_id: dict[str, list[Finding]] = {case_id: [] for case_id in cases}
    for finding in findings:
        for case_id in [finding.case_id] if finding.case_id else by_case_id:
            if case_id in by_case_id:
                by_case_id[case_id].append(finding)
    judged = []
    for record in records:
        case = cases[record.case_id]
        baselines = list(_compare_with_baselines(record, case, by_case_id[record.case_id]))
        alternatives = list(_compare_with_alternatives(record, case))
        judged.append(replace(record, comparisons=(*baselines, *alternatives)))
    return judged


def _compare_with_baselines(
    record: Record, case: Sequence[Record], findings: Sequence[Finding]
) -> Iterator[Comparison]:
    for regime in Regime:
        if record.role is Role.CANDIDATE and _is_judged(case, regime):
            yield _judge(record, case, findings, regime)
        elif (timed := record.compared(regime)) is not None:
            yield timed


def _is_judged(case: Sequence[Record], regime: Regime) -> bool:
    return case[0].regime is regime or any(r.timed_in(regime) is not None for r in case)


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


def _timings(record: Record, regime: Regime) -> Samples | Bursts:
    assert record.observation is not None
    return record.observation.timings(regime)


def _measure_ratio(best: Record, record: Record, regime: Regime) -> Ratio:
    """Return the ratio of two records of one attempt. Raises `TooFewRounds`."""
    ratio = paired_ratio(_timings(best, regime), _timings(record, regime))
    return ratio.widened(clock_spread([record.conditions]))


def _judge(
    record: Record, case: Sequence[Record], findings: Sequence[Finding], regime: Regime
) -> Comparison:
    timed = record.comparison(regime)
    if record.status is not Status.OK:
        verdict = None if record.status in BENIGN else Verdict.INVALID
        return replace(timed, verdict=verdict, reason=record.reason)
    speaking = [f for f in findings if f.speaks_in(regime)]
    for finding in speaking:
        # A finding without a case is about the run, such as an uncaught control.
        if finding.effect is Effect.INVALID and (finding.concerns(record) or finding.of_run):
            return replace(timed, verdict=Verdict.INVALID, reason=finding.sentence)
    if timed.median_ms is None:
        return _make_inconclusive(timed, "parity only: it was not timed")
    best = best_baseline(case, beside=record, regime=regime)
    if best is None:
        return _make_inconclusive(timed, "no valid baseline was timed beside it")
    try:
        ratio = _measure_ratio(best, record, regime)
    except TooFewRounds as few:
        return _make_inconclusive(timed, str(few))
    verdict, why = from_interval(ratio, regime)
    timed = replace(_set_ratio(timed, best, ratio), verdict=verdict)
    own = _note_own_baseline(case, record, best, regime)
    timed = because(because(timed, own), why)
    for finding in speaking:
        if finding.effect is Effect.INCONCLUSIVE and finding.concerns(record):
            timed = _make_inconclusive(timed, finding.sentence)
    return timed


def because(judged: Comparison, reason: str) -> Comparison:
    """Put a reason in front of a comparison's own, unless it already has it."""
    if reason in judged.reason:
        return judged
    return replace(judged, reason="; ".join(filter(None, (reason, judged.reason))))


def _make_inconclusive(judged: Comparison, reason: str) -> Comparison:
    return replace(because(judged, reason), verdict=Verdict.INCONCLUSIVE)


def _note_own_baseline(case: Sequence[Record], record: Record, best: Record, regime: Regime) -> str:
    own = best_baseline(
        [r for r in case if r.source == record.source], beside=record, regime=regime
    )
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
    times = paired(baseline.round, baseline.time_ms, candidate.round, candidate.time_ms)
    if len(times[0]) < MIN_ROUNDS_EVER:
        raise TooFewRounds(
            f"only {len(times[0])} rounds have both it and a baseline; {MIN_ROUNDS_EVER} are needed"
        )
    return ratio_of_rounds(*times)


def is_close(judged: Comparison, margin: float = MARGIN) -> bool:
    """Return whether a second process might well disagree on the verdict or the margin."""
    if judged.ratio is None or judged.lo is None or judged.hi is None:
        return False
    at_margin = judged.lo < margin * (1 + NEAR) and judged.hi > margin * (1 - NEAR)
    by_little = (
        abs(judged.ratio - 1) < DRIFT or abs(judged.lo - 1) < NEAR or abs(judged.hi - 1) < NEAR
    )
    # An inconclusive verdict stays so, and `same` is far from the margin.
    return judged.verdict in (Verdict.FASTER, Verdict.SLOWER) and (by_little or at_margin)


def revise(
    record: Record,
    case: Sequence[Record],
    confirmation: CaseState | None = None,
    isolated: CaseState | None = None,
    clean: Collection[str] = (),
    margin: float = MARGIN,
    clean_alternatives: Collection[str] = (),
) -> Record:
    """Return the record of a candidate or a baseline after the later passes over its case.

    case: the records of the case. clean: its baselines from other packages than all candidates.
    margin: confirmations were chosen by it. clean_alternatives: as `clean`.
    """
    comparisons = []
    for judged in record.comparisons:
        if judged.reference is Reference.BASELINE and judged.verdict is not None:
            failure = _describe_failure(record.implementation, confirmation) if confirmation else ""
            if failure:
                blank = replace(record, comparisons=()).comparison(judged.regime)
                judged = replace(blank, verdict=Verdict.INVALID, reason=failure)
            elif confirmation is not None and is_close(judged, margin):
                judged = _confirm_verdict(judged, confirmation, margin)
            # Without clean baselines the pass times only alternatives.
            if isolated is not None and clean and judged.verdict is Verdict.FASTER:
                judged = _compare_with_isolated(judged, record, case, isolated, clean)
        elif judged.reference is Reference.ALTERNATIVE and isolated and clean_alternatives:
            judged = _compare_with_isolated_alternatives(judged, record, case, isolated)
        comparisons.append(judged)
    return replace(record, comparisons=tuple(comparisons))


def _describe_failure(name: str, second: CaseState) -> str:
    for observation in second.observations:
        if observation.implementation == name and observation.status not in BENIGN:
            return f"a second process found it {observation.status}: {observation.reason}"
    return ""


def _confirm_verdict(judged: Comparison, second: CaseState, margin: float) -> Comparison:
    timed = {
        o.implementation: timings
        for o in second.observations
        if (timings := o.timings(judged.regime)).time_ms
    }
    conditions = list(second.conditions.values())

    def unconfirmed(why: str) -> Comparison:
        return _make_inconclusive(judged, f"a second process could not confirm the verdict: {why}")

    disturbance = next(disturbances(conditions), "")
    if disturbance:
        return unconfirmed(disturbance)
    if judged.implementation not in timed or judged.against not in timed:
        return unconfirmed(second.reason or "it was not timed again")
    try:
        seen = paired_ratio(timed[judged.against], timed[judged.implementation])
    except TooFewRounds as few:
        return unconfirmed(str(few))
    seen = seen.widened(clock_spread(conditions))
    assert judged.lo is not None
    verdict, _ = from_interval(seen, judged.regime)
    agreed = verdict is judged.verdict
    if agreed and (seen.lo >= margin) == (judged.lo >= margin):
        return judged
    why = f"a second process saw a ratio of {seen.value:.3f} ({seen.lo:.3f} to {seen.hi:.3f})"
    return replace(
        because(judged, why),
        verdict=judged.verdict if agreed else Verdict.INCONCLUSIVE,
        # Decisions take the lower bound, so both processes must have passed the margin.
        lo=min(judged.lo, seen.lo),
    )


def _compare_with_isolated(
    judged: Comparison,
    record: Record,
    case: Sequence[Record],
    isolated: CaseState,
    clean: Collection[str],
) -> Comparison:
    """Return the verdict, unless the candidate slowed the baselines in its process.

    Then the best baseline counts as timed in a process that never imported a candidate. A baseline
    from the candidate's package always runs with it, so the best of the other baselines shows
    whether all were slowed.
    """
    leader = next((r for r in case if r.implementation == judged.against), None)
    valid = [r.implementation for r in case if r.implementation in clean and r.median_ms]

    def unknown(why: str, who: str = "the baselines") -> Comparison:
        return _make_inconclusive(
            judged, f"{who} could not be timed apart from the candidates: {why}"
        )

    disturbance = next(disturbances(list(isolated.conditions.values())), "")
    if disturbance:
        return unknown(disturbance)
    observations = {o.implementation: o for o in isolated.observations}
    timed = _list_timed(isolated, judged.regime, Role.BASELINE, case)
    if leader is None or leader.source == record.source:
        return unknown("no other was valid beside it")
    best = leader.implementation
    if isolated.reason and not {best, *valid} <= observations.keys():
        return unknown(isolated.reason)
    if best not in observations:
        return unknown("it comes with another candidate: measure without that one", best)
    for who in (best, *valid):
        # Without its time, nothing shows whether the candidate slowed it.
        if who in observations and observations[who].status is not Status.OK:
            return unknown(observations[who].reason, who)
    if best not in timed:
        return unknown("it was far behind there, and not called so", best)
    best = min(timed, key=lambda who: quantile(timed[who], 0.5))
    if judged.regime is not Regime.QUEUE and len(timed[best]) < MIN_ROUNDS_EVER:
        # It was dropped early, because one that then failed was far ahead.
        return unknown("it was called a few times only", best)
    return _hold_to(judged, record, best, timed[best], isolated)


def _compare_with_isolated_alternatives(
    judged: Comparison, record: Record, case: Sequence[Record], isolated: CaseState
) -> Comparison:
    """Return the comparison with the best alternative, unless a candidate slowed all of them."""
    roles = {r.implementation: r.role for r in case}
    asked = [o for o in isolated.observations if roles.get(o.implementation) is Role.ALTERNATIVE]
    if judged.lo is None or judged.lo <= 1 or not (asked or isolated.reason):
        return judged
    timed = _list_timed(isolated, judged.regime, Role.ALTERNATIVE, case)
    why = next(disturbances(list(isolated.conditions.values())), "")
    if not why and judged.against not in timed:
        why = next((o.reason for o in asked if o.implementation == judged.against), "")
        why = why or isolated.reason or f"{judged.against} was not timed there"
    if why:
        reason = f"the alternatives could not be timed apart from the candidates: {why}"
        return replace(because(judged, reason), ratio=None, lo=None, hi=None)
    best = min(timed, key=lambda who: quantile(timed[who], 0.5))
    return _hold_to(judged, record, best, timed[best], isolated)


def _list_timed(
    isolated: CaseState, regime: Regime, role: Role, case: Sequence[Record]
) -> dict[str, list[float]]:
    """Return the times of the isolated implementations of a role."""
    roles = {r.implementation: r.role for r in case}
    return {
        o.implementation: times
        for o in isolated.observations
        if roles.get(o.implementation, Role.BASELINE) is role
        and (times := o.timings(regime).time_ms)
    }


def _hold_to(
    judged: Comparison, record: Record, best: str, isolated: list[float], state: CaseState
) -> Comparison:
    """Return the comparison with `best`, timed apart, if the reference was slower beside."""
    assert judged.ratio is not None and judged.lo is not None
    isolated_ms = quantile(isolated, 0.5)
    times = _timings(record, judged.regime).time_ms
    beside_ms = judged.ratio * quantile(times, 0.5)
    spread = clock_spread([*state.conditions.values(), record.conditions])
    if beside_ms <= isolated_ms / spread * (1 + DRIFT):
        return judged
    moved = ratio_of_independent_medians(isolated, times).widened(spread)
    # Two processes differ by so much without a reason.
    lo = min(judged.lo, moved.lo / (1 + DRIFT))
    why = (
        f"{best} takes {isolated_ms:.3g} ms in a process that never imported a candidate, and the "
        f"best {judged.reference} beside it {beside_ms:.3g} ms: the ratio to the former counts; to "
        f"the latter would be {judged.ratio:.3f}"
    )
    verdict = judged.verdict
    if verdict is not None:
        verdict = Verdict.FASTER if lo > 1 else Verdict.INCONCLUSIVE
    return replace(
        because(judged, why),
        verdict=verdict,
        ratio=min(judged.ratio, moved.value),
        lo=lo,
        hi=moved.hi,
    )


def from_interval(ratio: Ratio, regime: Regime = Regime.DEVICE) -> tuple[Verdict, str]:
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

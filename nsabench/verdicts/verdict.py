"""The verdict of a candidate on a case, against the best valid baseline that ran beside it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from nsabench.checks.best_baseline import best_baseline
from nsabench.checks.cases import by_case
from nsabench.checks.clocks import clock_spread, disturbances
from nsabench.checks.finding import Effect, Finding
from nsabench.checks.row import Row
from nsabench.model.measurement import Bursts, Conditions, Samples
from nsabench.model.vocabulary import BENIGN, MARGIN, Mode, Regime, Role, Status, Verdict
from nsabench.verdicts.attempts import CaseState
from nsabench.verdicts.statistics import (
    MIN_ROUNDS_EVER,
    Ratio,
    paired,
    quantile,
    ratio_of_independent_medians,
    ratio_of_medians,
)

# Medians of one implementation in two processes differ by this much
# (docs/explanation/measurement.md).
DRIFT = 0.03
# Differences below this are of no use to anybody and within what a second run moves.
SAME_BAND = 0.01
# Of eight bursts the interval is as wide as their noise, and a host is noisier than a device: with
# a noise of 2 % the band above would call 4 of 100 equal pairs unequal, and this one below 1.
SAME_BAND_IN_QUEUE = 0.02
NEAR = 0.01  # of the margin or of a verdict's own bound: a second process decides

Key = tuple[str, str]  # case id, implementation


@dataclass(frozen=True)
class Judgement:
    """speedup = median of the best baseline / median of the candidate, with its 95 % interval.

    conditions: those under which it was measured, which its interval knows of.
    """

    verdict: Verdict | None = None
    why: str = ""
    best_baseline: str = ""
    speedup: float | None = None
    speedup_lo: float | None = None
    speedup_hi: float | None = None
    conditions: Conditions = field(default_factory=Conditions)


InRegime = Mapping[Regime, Mapping[Key, Judgement]]


@dataclass(frozen=True)
class Aside:
    """What processes that never imported a candidate saw of the baselines in its case.

    leader: the best baseline beside it that does not come with it; empty where there is none.
    valid: the baselines that were right and timed beside it and should have been so there.
    """

    state: CaseState
    leader: str
    valid: Sequence[str] = ()


NO_ASIDES: Mapping[Key, Aside] = MappingProxyType({})


def judge(
    rows: Sequence[Row],
    timings: Mapping[Key, Samples | Bursts],
    findings: Iterable[Finding],
    regime: Regime,
) -> dict[Key, Judgement]:
    """Judge every candidate in a regime, on the cases that have it.

    `rows` already carry the statuses that the checks gave them.
    """
    cases = by_case(rows)
    heard: dict[str, list[Finding]] = {case_id: [] for case_id in cases}
    for finding in findings:
        for case_id in [finding.case_id] if finding.case_id else heard:
            if case_id in heard:
                heard[case_id].append(finding)
    cases = {case_id: case for case_id, case in cases.items() if has(case, regime)}
    return {
        (row.case_id, row.implementation): _judge(
            row, cases[row.case_id], timings, heard[row.case_id], regime
        )
        for row in rows
        if row.role is Role.CANDIDATE and row.case_id in cases
    }


def has(case: Sequence[Row], regime: Regime) -> bool:
    """Whether a case is judged in a regime: in that of its samples, and in the queue if calls were
    made one behind the other. Replays are no calls, and calls at once are another load."""
    if regime is not Regime.QUEUE:
        return Regime.of_samples(case[0].mode) is regime
    return any(
        row.queued_ms is not None and row.mode is Mode.STREAM and row.streams == 1 for row in case
    )


def revised(
    judgements: Mapping[Key, Judgement],
    timings: Mapping[Key, Samples | Bursts],
    confirmations: Mapping[str, CaseState],
    asides: Mapping[Key, Aside] = NO_ASIDES,
    margin: float = MARGIN,
    regime: Regime = Regime.DEVICE,
) -> dict[Key, Judgement]:
    """The judgements of a regime after what other processes saw of the same cases.

    confirmations: by case id. asides: by candidate. margin: that of the plan, which the
    confirmations were chosen by.
    """
    judged = {}
    for (case_id, name), judgement in judgements.items():
        second, isolated = confirmations.get(case_id), asides.get((case_id, name))
        if second is not None:
            failed = _failing(name, second)
            if failed is not None and judgement.verdict is not None:
                judgement = failed
            elif is_close(judgement, margin):
                judgement = _confirmed(judgement, name, second, margin, regime)
        if isolated is not None and judgement.verdict is Verdict.FASTER:
            judgement = _beside_nobody(judgement, timings[case_id, name], isolated, regime)
        judged[case_id, name] = judgement
    return judged


def _judge(
    row: Row,
    case: Sequence[Row],
    timings: Mapping[Key, Samples | Bursts],
    findings: Sequence[Finding],
    regime: Regime,
) -> Judgement:
    if row.status is not Status.OK:
        if row.status in BENIGN:
            return Judgement(None, row.reason)
        return Judgement(Verdict.INVALID, row.reason)
    concerning = [f for f in findings if f.concerns(row) and f.speaks_in(regime)]
    for finding in findings:
        if not finding.speaks_in(regime):
            continue
        # One that names no case speaks of the run: an uncaught control, say.
        if finding.effect is Effect.INVALID and (finding.concerns(row) or finding.of_run):
            return Judgement(Verdict.INVALID, finding.sentence)
    if row.time_ms(regime) is None:
        return Judgement(Verdict.INCONCLUSIVE, "parity only: it was not timed")
    best = best_baseline(case, beside=row, regime=regime)
    if best is None:
        return Judgement(Verdict.INCONCLUSIVE, "no valid baseline was timed beside it")
    try:
        ratio = paired_ratio(
            timings[best.case_id, best.implementation], timings[row.case_id, row.implementation]
        ).widened(clock_spread([row.conditions]))
    except TooFewRounds as few:
        return Judgement(Verdict.INCONCLUSIVE, str(few))
    verdict, why = from_interval(ratio, regime)
    for finding in concerning:
        if finding.effect is Effect.INCONCLUSIVE:
            verdict, why = Verdict.INCONCLUSIVE, finding.sentence
    own = _faster_of_own_package(case, row, best, regime)
    return Judgement(
        verdict,
        "; ".join(filter(None, (why, own))),
        best.implementation,
        ratio.value,
        ratio.lo,
        ratio.hi,
        row.conditions,
    )


def _faster_of_own_package(case: Sequence[Row], row: Row, best: Row, regime: Regime) -> str:
    """What is said where a baseline from the candidate's own package is the fastest; it does not
    decide."""
    own = best_baseline([r for r in case if r.source == row.source], beside=row, regime=regime)
    if own is None or own.source == best.source:
        return ""
    own_ms, best_ms = own.time_ms(regime) or 0.0, best.time_ms(regime) or 0.0
    if own_ms >= best_ms:
        return ""
    return (
        f"{own.implementation}, a baseline from its own package, takes {own_ms:.3g} ms and does "
        f"not decide; {best.implementation} takes {best_ms:.3g} ms"
    )


class TooFewRounds(Exception):
    """Both were sampled together too seldom for an interval that means anything."""


def paired_ratio(baseline: Samples | Bursts, candidate: Samples | Bursts) -> Ratio:
    """Return the ratio of medians over common rounds. Raises `TooFewRounds`."""
    times = paired(baseline.round, baseline.time_ms, candidate.round, candidate.time_ms)
    if len(times[0]) < MIN_ROUNDS_EVER:
        raise TooFewRounds(
            f"only {len(times[0])} rounds have both it and a baseline; {MIN_ROUNDS_EVER} are needed"
        )
    return ratio_of_medians(*times)


def is_close(judgement: Judgement, margin: float = MARGIN) -> bool:
    """Whether a second process might well see the verdict, or the margin, the other way."""
    if judgement.speedup is None or judgement.speedup_lo is None or judgement.speedup_hi is None:
        return False
    at_margin = judgement.speedup_lo < margin * (1 + NEAR) and judgement.speedup_hi > margin * (
        1 - NEAR
    )
    by_little = (
        abs(judgement.speedup - 1) < SAME_BAND + NEAR
        or abs(judgement.speedup_lo - 1) < NEAR
        or abs(judgement.speedup_hi - 1) < NEAR
    )
    # What is inconclusive stays so, and whose verdict is "same" is far from the margin.
    return judgement.verdict in (Verdict.FASTER, Verdict.SLOWER) and (by_little or at_margin)


def _failing(name: str, second: CaseState) -> Judgement | None:
    """What is left of a verdict in any regime when the candidate fails in a second process."""
    for observation in second.observations:
        if observation.implementation == name and observation.status not in BENIGN:
            why = f"a second process found it {observation.status}: {observation.reason}"
            return Judgement(Verdict.INVALID, why)
    return None


def _confirmed(
    judgement: Judgement, name: str, second: CaseState, margin: float, regime: Regime
) -> Judgement:
    """The judgement, or `inconclusive` where the second process does not bear it out."""
    taken = {o.implementation: o.timings(regime) for o in second.observations}
    timed = {who: timings for who, timings in taken.items() if timings.time_ms}
    unconfirmed = "a second process could not confirm the verdict"
    disturbance = next(disturbances(list(second.conditions.values())), "")
    if disturbance:
        return _unknown(judgement, unconfirmed, disturbance)
    if name not in timed or judgement.best_baseline not in timed:
        return _unknown(judgement, unconfirmed, second.reason or "it was not timed again")
    try:
        seen = paired_ratio(timed[judgement.best_baseline], timed[name]).widened(
            clock_spread(list(second.conditions.values()))
        )
    except TooFewRounds as few:
        return _unknown(judgement, unconfirmed, str(few))
    assert judgement.speedup_lo is not None
    verdict, _ = from_interval(seen, regime)
    agreed = verdict is judgement.verdict
    if agreed and (seen.lo >= margin) == (judgement.speedup_lo >= margin):
        return judgement
    return replace(
        judgement,
        verdict=judgement.verdict if agreed else Verdict.INCONCLUSIVE,
        # The decision takes the lower bound, so what only one process saw cannot pass it.
        speedup_lo=min(judgement.speedup_lo, seen.lo),
        why=f"a second process saw a ratio of {seen.value:.3f} ({seen.lo:.3f} to {seen.hi:.3f})",
    )


def _beside_nobody(
    judgement: Judgement, candidate: Samples | Bursts, aside: Aside, regime: Regime
) -> Judgement:
    """The judgement, if the baselines were not slower beside the candidate than without it.

    Else the ratio to the best of them in a process that never imported it is what counts. Of one
    that comes with it no process has the one without the other, and the best of the others says
    whether all were slowed.
    """
    isolated, leader = aside.state, aside.leader

    def unknown(why: str, who: str = "") -> Judgement:
        what = f"{who or 'the baselines'} could not be timed apart from the candidates"
        return _unknown(judgement, what, why)

    disturbance = next(disturbances(list(isolated.conditions.values())), "")
    if disturbance:
        return unknown(disturbance)
    observations = {o.implementation: o for o in isolated.observations}
    timed = {w: times for w, o in observations.items() if (times := o.timings(regime).time_ms)}
    if not leader:
        return unknown("no other was valid beside it")
    if isolated.reason and not {leader, *aside.valid} <= observations.keys():
        return unknown(isolated.reason)
    if leader not in observations:
        return unknown("it comes with another candidate: measure without that one", leader)
    for who in (leader, *aside.valid):
        # What others take does not show that it was not slowed until they led.
        if who in observations and observations[who].status is not Status.OK:
            return unknown(observations[who].reason, who)
    if leader not in timed:
        return unknown("it was far behind there, and not called so", leader)
    best = min(timed, key=lambda who: quantile(timed[who], 0.5))
    if regime is not Regime.QUEUE and len(timed[best]) < MIN_ROUNDS_EVER:
        # It looked hopeless there, beside one that failed.
        return unknown("it was called a few times only", best)
    assert judgement.speedup is not None and judgement.speedup_lo is not None
    isolated_ms = quantile(timed[best], 0.5)
    beside_ms = judgement.speedup * quantile(candidate.time_ms, 0.5)
    spread = clock_spread([*isolated.conditions.values(), judgement.conditions])
    if beside_ms <= isolated_ms / spread * (1 + DRIFT):
        return judgement
    moved = ratio_of_independent_medians(timed[best], candidate.time_ms).widened(spread)
    # They come from two processes, and two processes differ by that much without a reason.
    lo = min(judgement.speedup_lo, moved.lo / (1 + DRIFT))
    return replace(
        judgement,
        verdict=Verdict.FASTER if lo > 1 else Verdict.INCONCLUSIVE,
        speedup=min(judgement.speedup, moved.value),
        speedup_lo=lo,
        speedup_hi=moved.hi,
        why=f"{best} takes {isolated_ms:.3g} ms in a process that never imported a candidate, and "
        f"the best baseline beside it {beside_ms:.3g} ms: the ratio to the former counts; to the "
        f"latter would be {judgement.speedup:.3f}",
    )


def _unknown(judgement: Judgement, what: str, why: str) -> Judgement:
    return replace(judgement, verdict=Verdict.INCONCLUSIVE, why=f"{what}: {why}")


def from_interval(ratio: Ratio, regime: Regime = Regime.DEVICE) -> tuple[Verdict, str]:
    """The verdict that a ratio and its interval give, and why it is not clear."""
    value, lo, hi = ratio.value, ratio.lo, ratio.hi
    band = SAME_BAND_IN_QUEUE if regime is Regime.QUEUE else SAME_BAND
    if lo >= 1 - band and hi <= 1 + band:
        return Verdict.SAME, ""
    if lo > 1 and value > 1 + band:
        return Verdict.FASTER, ""
    if hi < 1 and value < 1 - band:
        return Verdict.SLOWER, ""
    return Verdict.INCONCLUSIVE, f"the 95 % interval of the ratio is {lo:.3f} to {hi:.3f}"

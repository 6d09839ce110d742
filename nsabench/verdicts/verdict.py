"""The verdict of a candidate on a case: its ratio to the best valid baseline of its attempt.

`verdicts/revision.py` then revises the verdicts by the later passes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from nsabench.checks.cases import best_baseline, by_case, fastest
from nsabench.checks.finding import Effect, Finding
from nsabench.checks.timing import clock_spread
from nsabench.model.measurement import Bursts, Samples
from nsabench.model.record import GREAT_RATIO, Comparison, Record
from nsabench.model.vocabulary import (
    BENIGN,
    NO_SPECIALISED,
    Kind,
    Reference,
    Regime,
    Role,
    Status,
    Verdict,
)
from nsabench.verdicts.statistics import MIN_ROUNDS_EVER, Ratio, ratio_of_rounds

# A second run moves ratios by as much as this, and smaller differences are of no use.
SAME_BAND = 0.01
# A host is noisier than a device, and eight bursts are few. With a noise of 2 % the band above
# calls 4 of 100 equal pairs unequal; this one calls fewer than 1.
SAME_BAND_IN_QUEUE = 0.02
BEHIND = 2.0  # times the best: a specialised baseline that takes longer does not count


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
            yield _decide_candidate(record, case, findings, regime)
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


def _decide_candidate(
    record: Record, case: Sequence[Record], findings: Sequence[Finding], regime: Regime
) -> Comparison:
    timed = record.comparison(regime)
    if record.status is not Status.OK:
        verdict = None if record.status in BENIGN else Verdict.INVALID
        return replace(timed, verdict=verdict, reason=record.reason)
    speaking = [f for f in findings if f.regime in (None, regime)]
    for finding in speaking:
        # A finding without a case is about the run, such as an uncaught control.
        if finding.effect is Effect.INVALID and (finding.concerns(record) or finding.of_run):
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
    """Put a reason in front of a comparison's own, unless it already has it."""
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
        raise TooFewRounds(
            f"only {len(common)} rounds have both it and a baseline; {MIN_ROUNDS_EVER} are needed"
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


def list_speedups(records: Iterable[Record], regime: Regime) -> list[float]:
    """Return the ratios in a regime that an average includes: those without a caution."""
    compared = [r.compared(regime) for r in records if not r.caution_in(regime)]
    return [c.ratio for c in compared if c is not None and c.ratio is not None]


def count_cautions(cautions: Iterable[str]) -> str:
    """Count cautions in words: `no specialised baseline in 3 of 16`; empty without any."""
    given = list(cautions)
    counts = Counter(text for text in given if text)
    return "; ".join(f"{text} in {n} of {len(given)}" for text, n in counts.items())

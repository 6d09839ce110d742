"""The verdict of a candidate on a case, against the best valid baseline that ran beside it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from nsabench.checks.baselines import best_baseline
from nsabench.checks.finding import Effect, Finding
from nsabench.checks.row import Row
from nsabench.messages import Samples
from nsabench.timing.statistics import paired, ratio_of_medians
from nsabench.words import BENIGN, Role, Status, Verdict

# Differences below this are of no use to anybody and within what a second run moves.
SAME_BAND = 0.01

Key = tuple[str, str]  # case id, implementation


@dataclass(frozen=True)
class Judgement:
    """speedup = median of the best baseline / median of the candidate, with its 95 % interval."""

    verdict: Verdict | None = None
    why: str = ""
    best_baseline: str = ""
    speedup: float | None = None
    speedup_lo: float | None = None
    speedup_hi: float | None = None


def judge(
    rows: Sequence[Row], samples: Mapping[Key, Samples], findings: Iterable[Finding]
) -> dict[Key, Judgement]:
    """Judge every candidate. `rows` already carry the statuses that the checks gave them."""
    findings = list(findings)
    cases: dict[str, list[Row]] = {}
    for row in rows:
        cases.setdefault(row.case_id, []).append(row)
    return {
        (row.case_id, row.implementation): _judge(row, cases[row.case_id], samples, findings)
        for row in rows
        if row.role is Role.CANDIDATE
    }


def _judge(
    row: Row, case: Sequence[Row], samples: Mapping[Key, Samples], findings: Sequence[Finding]
) -> Judgement:
    if row.status is not Status.OK:
        if row.status in BENIGN:
            return Judgement(None, row.reason)
        return Judgement(Verdict.INVALID, row.reason)
    concerning = [f for f in findings if f.concerns(row.case_id, row.implementation)]
    for finding in findings:
        # One that names no case speaks of the run: an uncaught control, say.
        if finding.effect is Effect.INVALID and (finding in concerning or not finding.case_id):
            return Judgement(Verdict.INVALID, finding.sentence)
    if row.timed_ms is None:
        return Judgement(Verdict.INCONCLUSIVE, "parity only: it was not timed")
    # Only what was interleaved with the candidate may form a ratio with it.
    best = best_baseline([other for other in case if other.session == row.session])
    if best is None:
        return Judgement(Verdict.INCONCLUSIVE, "no valid baseline was timed beside it")
    mine = samples[row.case_id, row.implementation]
    theirs = samples[best.case_id, best.implementation]
    b, a = paired(theirs.round, theirs.time_ms, mine.round, mine.time_ms)
    ratio = ratio_of_medians(b, a)
    verdict, why = _from_interval(ratio.value, ratio.lo, ratio.hi)
    for finding in concerning:
        if finding.effect is Effect.INCONCLUSIVE:
            verdict, why = Verdict.INCONCLUSIVE, finding.sentence
    return Judgement(verdict, why, best.implementation, ratio.value, ratio.lo, ratio.hi)


def _from_interval(value: float, lo: float, hi: float) -> tuple[Verdict, str]:
    if lo >= 1 - SAME_BAND and hi <= 1 + SAME_BAND:
        return Verdict.SAME, ""
    if lo > 1 and value > 1 + SAME_BAND:
        return Verdict.FASTER, ""
    if hi < 1 and value < 1 - SAME_BAND:
        return Verdict.SLOWER, ""
    return Verdict.INCONCLUSIVE, f"the 95 % interval of the ratio is {lo:.3f} to {hi:.3f}"

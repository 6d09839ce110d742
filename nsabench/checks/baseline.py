"""Baseline: a speed-up over something slow says nothing about the candidate.

Verdicts compare with the fastest valid baseline of a case, so a slow one decides nothing as long
as a faster one is there. This check says which ones are slow, and when the fastest is slow too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nsabench.checks.best_baseline import best_baseline
from nsabench.checks.finding import Effect, Finding
from nsabench.checks.limits import Limits, least
from nsabench.checks.series import by_case
from nsabench.model.record import Record
from nsabench.model.vocabulary import Role

SLOW = 3.0  # times the best valid baseline; K and V expanded over heads are honest at 3.5
# What the launches of an eager baseline, or its host code on a CPU, may take on top of its work.
FIXED_COST_MS = 0.2
FAR_FROM_ROOFLINE = 30.0
HIDDEN = 0.5  # share of samples whose launch gap the timer could hide


def check(rows: Sequence[Record], limits: Limits) -> list[Finding]:
    """Baselines (and controls that pose as one) that no speed-up may be quoted against."""
    cases = by_case(r for r in rows if r.median_ms is not None)
    return [f for case in cases.values() for f in _check_case(case, limits)]


def _check_case(rows: list[Record], limits: Limits) -> Iterator[Finding]:
    yield from _slow(rows)
    best = best_baseline(rows)
    if best is None or not best.median_ms:
        return
    if best.dtype not in limits.tflop_s:
        return  # half a roofline: what looks slow may be busy computing
    bound = least(best, limits, l2_bytes=0)
    if bound is not None and best.median_ms > FAR_FROM_ROOFLINE * bound.ms + FIXED_COST_MS:
        sentence = (
            f"the best valid baseline, {best.implementation}, takes {best.median_ms:.3g} ms, "
            f"{best.median_ms / bound.ms:.0f} times what {bound.why} take: a speed-up over it "
            f"says that it is slow"
        )
        # A baseline that waits for the device within the call (`.item()` in a loop, say) is slow by
        # how it is written; one that does not may just be the best there is for this op.
        effect = Effect.INCONCLUSIVE if _synchronises(best) else Effect.NOTE
        yield Finding("baseline", effect, sentence, best.case_id)


def _synchronises(record: Record) -> bool:
    """Whether most calls could not be queued before the device was let go. Nothing is known of a
    timer that is not ours."""
    if record.observation is None:
        return True
    hidden = record.observation.samples.gap_hidden
    return bool(hidden) and sum(hidden) / len(hidden) < HIDDEN


def _slow(rows: list[Record]) -> Iterator[Finding]:
    best = best_baseline(rows, alongside=True)
    if best is None or not best.median_ms:
        return
    for row in rows:
        if row.role is Role.CANDIDATE or row is best:
            continue
        assert row.median_ms is not None
        factor = row.median_ms / best.median_ms
        if factor > SLOW:
            sentence = (
                f"{row.median_ms:.3g} ms is {factor:.1f} times the {best.median_ms:.3g} ms of "
                f"{best.implementation}, the best valid baseline: no speed-up may be quoted "
                f"against it"
            )
            yield Finding("baseline", Effect.NOTE, sentence, *row.key)

"""Baseline: find slow baselines, because a speed-up over one says nothing about the candidate.

A verdict compares with the fastest valid baseline of a case, so a slow one matters only if no
baseline is fast.
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
FIXED_COST_MS = 0.2  # for the launches of an eager baseline, or its host code on a CPU
FAR_FROM_ROOFLINE = 30.0
HIDDEN = 0.5  # share of samples that were queued before the device was let go


def check(rows: Sequence[Record], limits: Limits) -> list[Finding]:
    """Find baselines, and controls that pose as one, that are too slow for a speed-up."""
    cases = by_case(r for r in rows if r.median_ms is not None)
    return [f for case in cases.values() for f in _check_case(case, limits)]


def _check_case(rows: list[Record], limits: Limits) -> Iterator[Finding]:
    yield from _find_slow(rows)
    best = best_baseline(rows)
    if best is None or not best.median_ms:
        return
    if best.dtype not in limits.tflop_s:
        return  # without a rate, a time far from the memory bound may be arithmetic
    bound = least(best, limits, l2_bytes=0)
    if bound is not None and best.median_ms > FAR_FROM_ROOFLINE * bound.ms + FIXED_COST_MS:
        sentence = (
            f"the best valid baseline, {best.implementation}, takes {best.median_ms:.3g} ms, "
            f"{best.median_ms / bound.ms:.0f} times what {bound.why} take: a speed-up over it "
            f"says that it is slow"
        )
        # A baseline that waits for the device within a call, as by `.item()`, is written badly.
        # Another one may just be the best for this op.
        effect = Effect.INCONCLUSIVE if _synchronises(best) else Effect.NOTE
        yield Finding("baseline", effect, sentence, best.case_id)


def _synchronises(record: Record) -> bool:
    """Return whether most calls wait for the device. For timers from elsewhere that is assumed."""
    if record.observation is None:
        return True
    hidden = record.observation.samples.gap_hidden
    return bool(hidden) and sum(hidden) / len(hidden) < HIDDEN


def _find_slow(rows: list[Record]) -> Iterator[Finding]:
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

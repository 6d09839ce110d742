"""Find slow baselines, because a speed-up over one says nothing about the candidate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nsabench.checks.cases import best_baseline, by_case
from nsabench.checks.finding import Effect, Finding
from nsabench.checks.roofline import DeviceLimits, least_time
from nsabench.model.record import Record
from nsabench.model.vocabulary import Role

SLOW = 3.0  # times the best valid baseline; K and V expanded over heads are honest at 3.5
FIXED_COST_MS = 0.2  # for the launches of an eager baseline, or its host code on a CPU
FAR_FROM_ROOFLINE = 30.0
HIDDEN = 0.5  # share of samples that were queued before the device was let go


def check_baseline(records: Sequence[Record], limits: DeviceLimits) -> list[Finding]:
    """A speed-up over a slow baseline says nothing about the candidate.

    A slow baseline matters only if no baseline of the case is fast.
    """
    cases = by_case(r for r in records if r.median_ms is not None)
    return [f for case in cases.values() for f in _check_case(case, limits)]


def _check_case(case: list[Record], limits: DeviceLimits) -> Iterator[Finding]:
    yield from _find_slow(case)
    best = best_baseline(case)
    if best is None or not best.median_ms:
        return
    if best.dtype not in limits.tflop_s:
        return  # without a rate, a time far from the memory bound may be arithmetic
    bound = least_time(best, limits, l2_bytes=0)
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
    """Return whether most calls wait for the device, as is assumed for times from elsewhere."""
    if record.observation is None:
        return True
    hidden = record.observation.samples.gap_hidden
    return bool(hidden) and sum(hidden) / len(hidden) < HIDDEN


def _find_slow(case: list[Record]) -> Iterator[Finding]:
    best = best_baseline(case, alongside=True)
    if best is None or not best.median_ms:
        return
    for record in case:
        if record.role is Role.CANDIDATE or record is best:
            continue
        assert record.median_ms is not None
        factor = record.median_ms / best.median_ms
        if factor > SLOW:
            sentence = (
                f"{record.median_ms:.3g} ms is {factor:.1f} times the {best.median_ms:.3g} ms of "
                f"{best.implementation}, the best valid baseline: no speed-up may be quoted "
                f"against it"
            )
            yield Finding("baseline", Effect.NOTE, sentence, *record.key)

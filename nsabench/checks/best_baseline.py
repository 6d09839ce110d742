"""Which baseline of a case counts."""

from __future__ import annotations

from collections.abc import Sequence

from nsabench.checks.row import Row
from nsabench.model.vocabulary import Regime, Role


def best_baseline(
    rows: Sequence[Row],
    beside: Row | None = None,
    *,
    alongside: bool = False,
    regime: Regime = Regime.DEVICE,
) -> Row | None:
    """The fastest baseline among the records of one case that is `ok` and within tolerance.

    Given `beside`, only what was interleaved with that record, since nothing else forms a ratio
    with it, and what comes from another package than that record, if there is any such.
    alongside: also what runs for the sake of a control alone, which a candidate is not held to.
    regime: in which it is the fastest. Who left the samples early may still be it in the queue.
    """
    valid = [
        r
        for r in rows
        if r.role is Role.BASELINE
        and (alongside or not r.alongside)
        and r.time_ms(regime) is not None
        and (r.mae is None or r.mae <= r.mae_tolerance)
        and (beside is None or r.attempt == beside.attempt)
    ]
    if beside is not None:
        valid = [r for r in valid if r.source != beside.source] or valid
    return fastest(valid, regime)


def fastest(valid: Sequence[Row], regime: Regime) -> Row | None:
    """The fastest of rows of one case that were timed in a regime.

    Of samples only what was sampled to the end may be it: clocks may have moved since an early
    round.
    """
    if regime is not Regime.QUEUE:
        most: dict[int, int] = {}
        for r in valid:
            most[r.attempt] = max(most.get(r.attempt, 0), r.n_samples)
        valid = [r for r in valid if r.n_samples == most[r.attempt]]
    return min(valid, key=lambda r: r.time_ms(regime) or 0.0, default=None)

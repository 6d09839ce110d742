"""Which baseline of a case counts."""

from __future__ import annotations

from collections.abc import Sequence

from nsabench.model.record import Record
from nsabench.model.vocabulary import Regime, Role


def best_baseline(
    records: Sequence[Record],
    beside: Record | None = None,
    *,
    alongside: bool = False,
    regime: Regime | None = None,
) -> Record | None:
    """The fastest baseline among the records of one case that is `ok` and within tolerance.

    beside: only what was interleaved with this record, since nothing else forms a ratio with it,
    and what comes from another package than it, if there is any.
    alongside: also what runs for a control alone.
    regime: in which it is the fastest; None: in the regime of the samples.
    """
    valid = [
        r
        for r in records
        if r.role is Role.BASELINE
        and (alongside or not r.alongside)
        and _time_ms(r, regime) is not None
        and (r.mae is None or r.mae <= r.tolerances.mae)
        and (beside is None or r.attempt == beside.attempt)
    ]
    if beside is not None:
        valid = [r for r in valid if r.source != beside.source] or valid
    return fastest(valid, regime)


def fastest(valid: Sequence[Record], regime: Regime | None = None) -> Record | None:
    """The fastest of records of one case that were timed in a regime.

    In a regime of samples it was sampled to the end: clocks may have moved since an early round.
    """
    if regime is not Regime.QUEUE:
        most: dict[int, int] = {}
        for r in valid:
            most[r.attempt] = max(most.get(r.attempt, 0), r.own.n_samples)
        valid = [r for r in valid if r.own.n_samples == most[r.attempt]]
    return min(valid, key=lambda r: _time_ms(r, regime) or 0.0, default=None)


def _time_ms(record: Record, regime: Regime | None) -> float | None:
    return record.median_in(regime or record.regime)

"""Find the baseline of a case that counts."""

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
    """Return the fastest baseline of a case that is `ok` and within tolerance, or None.

    beside: only baselines of this record's attempt, because others form no ratio with it. Baselines
    from its own package count only if all are.
    alongside: also baselines that run only for a control.
    regime: compare times in it; by default in the regime of the samples.
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
    """Return the fastest of the timed records of a case, or None.

    Except in the queue, records that left their attempt early do not count, because the clocks may
    have changed later.
    """
    if regime is not Regime.QUEUE:
        most: dict[int, int] = {}
        for r in valid:
            most[r.attempt] = max(most.get(r.attempt, 0), r.own.n_samples)
        valid = [r for r in valid if r.own.n_samples == most[r.attempt]]
    return min(valid, key=lambda r: _time_ms(r, regime) or 0.0, default=None)


def _time_ms(record: Record, regime: Regime | None) -> float | None:
    return record.median_in(regime or record.regime)

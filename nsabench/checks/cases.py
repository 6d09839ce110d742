"""Group records by case and by length, and find the fastest valid baseline of a case."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from typing import Protocol, TypeVar

from nsabench import ops
from nsabench.model.record import Record
from nsabench.model.vocabulary import Regime, Role


class OfCase(Protocol):
    @property
    def case_id(self) -> str: ...


T = TypeVar("T", bound=OfCase)


def by_case(items: Iterable[T]) -> dict[str, list[T]]:
    cases: dict[str, list[T]] = {}
    for item in items:
        cases.setdefault(item.case_id, []).append(item)
    return cases


def length_series(records: Iterable[Record]) -> list[list[Record]]:
    """Return the length series of each implementation's timed records, the shortest case first."""
    groups: dict[Hashable, dict[int, Record]] = defaultdict(dict)
    for record in records:
        if record.median_ms is not None:
            groups[record.implementation, ops.series_key(record)].setdefault(record.length, record)
    return [[group[length] for length in sorted(group)] for group in groups.values()]


def length_text(record: Record) -> str:
    return f"{ops.get(record.op).length_axis}={record.length}"


def best_baseline(
    records: Sequence[Record],
    beside: Record | None = None,
    *,
    alongside: bool = False,
    regime: Regime | None = None,
) -> Record | None:
    """Return the fastest timed baseline of a case. If its mean error is known, it is in tolerance.

    beside: take only baselines of this record's attempt. Baselines from this record's own source
    count only if there are no others. alongside: also take baselines that run only for a control.
    regime: by default, the regime of each record.
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
    if regime is not Regime.QUEUE:
        # A record with fewer samples than others of its attempt does not count, since the clocks
        # may have changed after its last sample.
        most: dict[int, int] = {}
        for r in valid:
            most[r.attempt] = max(most.get(r.attempt, 0), r.own.n_samples)
        valid = [r for r in valid if r.own.n_samples == most[r.attempt]]
    return min(valid, key=lambda r: _time_ms(r, regime) or 0.0, default=None)


def _time_ms(record: Record, regime: Regime | None) -> float | None:
    return record.median_in(regime or record.regime)

"""Group records and findings by case, and records that differ only in length."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable
from typing import Protocol, TypeVar

from nsabench import ops
from nsabench.model.record import Record


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
    """Group the timed records of an implementation that differ only in length, the shortest first.
    The first record of a length counts."""
    groups: dict[Hashable, dict[int, Record]] = defaultdict(dict)
    for record in records:
        if record.median_ms is not None:
            groups[record.implementation, ops.ladder(record)].setdefault(record.length, record)
    return [[group[length] for length in sorted(group)] for group in groups.values()]


def length_text(record: Record) -> str:
    return f"{ops.get(record.op).length_axis}={record.length}"

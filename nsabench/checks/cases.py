"""Rows and findings, case by case."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar


class OfCase(Protocol):
    """What belongs to one case."""

    @property
    def case_id(self) -> str: ...


T = TypeVar("T", bound=OfCase)


def by_case(items: Iterable[T]) -> dict[str, list[T]]:
    """What belongs to each case, by its id."""
    cases: dict[str, list[T]] = {}
    for item in items:
        cases.setdefault(item.case_id, []).append(item)
    return cases

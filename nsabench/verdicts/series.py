"""The smallest tested length from which every tested case passes a limit.

Thresholds and break-even lengths share this rule. A threshold compares a candidate with baselines,
by the margin. A break-even length compares the best implementation with alternatives, by 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nsabench.model.record import Comparison, Record
from nsabench.model.vocabulary import Status, Verdict


@dataclass(frozen=True)
class Tested:
    """An implementation on a case in one regime, compared with one reference."""

    record: Record
    comparison: Comparison
    label: str  # the case in words

    @property
    def length(self) -> int:
        return self.record.length

    @property
    def lo(self) -> float | None:
        return self.comparison.lo

    @property
    def why(self) -> str:
        """Why the status is not ok, the verdict not clear, or the ratio missing."""
        return self.record.reason or self.comparison.reason

    def passes(self, limit: float) -> bool:
        """Return whether it is right, and faster by the limit at the lower end of the interval.
        Comparisons with alternatives have no verdict."""
        return (
            self.record.status is Status.OK
            and self.comparison.verdict in (None, Verdict.FASTER)
            and self.lo is not None
            and self.lo > 1
            and self.lo >= limit
        )


def by_length(tested: Iterable[Tested]) -> dict[int, list[Tested]]:
    lengths: dict[int, list[Tested]] = {}
    for case in sorted(tested, key=lambda case: case.length):
        lengths.setdefault(case.length, []).append(case)
    return lengths


def walk(tested: Sequence[Tested], limit: float) -> tuple[int | None, list[Tested]]:
    """Return the smallest length from which every case passes, and the failing cases of the length
    below it."""
    passed: int | None = None
    for length, cases in reversed(by_length(tested).items()):
        failing = [case for case in cases if not case.passes(limit)]
        if failing:
            return passed, failing
        passed = length
    return passed, []

"""Where along a length series an implementation passes a limit.

A threshold and a break-even length are one rule with two limits: the smallest tested length from
which every tested case passes. A threshold is of a candidate against baselines, by the margin. A
break-even length is of the best implementation in each case against alternatives, by 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nsabench.model.record import Comparison, Record
from nsabench.model.vocabulary import Status, Verdict


@dataclass(frozen=True)
class Tested:
    """An implementation on a case in one regime, against one reference.

    label: the case in words. margin: at which the run confirmed verdicts, if that is known. own:
    whether it is from the user's own file.
    """

    record: Record
    comparison: Comparison
    label: str
    margin: float | None = None
    own: bool = False

    @property
    def length(self) -> int:
        return self.record.length

    @property
    def lo(self) -> float | None:
        return self.comparison.lo

    @property
    def why(self) -> str:
        """Why its status is not ok, its verdict not clear, or its ratio missing."""
        return self.record.reason or self.comparison.reason

    def passes(self, limit: float) -> bool:
        """Whether it is right, clearly faster, and by the limit at the lower end of the interval.
        Comparisons with alternatives have no verdict."""
        return (
            self.record.status is Status.OK
            and self.comparison.verdict in (None, Verdict.FASTER)
            and self.lo is not None
            and self.lo > 1
            and self.lo >= limit
        )


def by_length(tested: Iterable[Tested]) -> dict[int, list[Tested]]:
    """Group what was tested by length, the shortest first."""
    lengths: dict[int, list[Tested]] = {}
    for one in sorted(tested, key=lambda one: one.length):
        lengths.setdefault(one.length, []).append(one)
    return lengths


def walk(tested: Sequence[Tested], limit: float) -> tuple[int | None, list[Tested]]:
    """Return the smallest length from which every case passes, and the cases that fail next to it.

    Lengths are walked from the greatest down, so no length above the result has a failing case.
    """
    passed: int | None = None
    for length, cases in reversed(by_length(tested).items()):
        failing = [one for one in cases if not one.passes(limit)]
        if failing:
            return passed, failing
        passed = length
    return passed, []

"""Find the smallest tested length from which every tested case passes a limit.

Thresholds and break-even lengths share this rule. At a threshold, a candidate beats baselines by
the margin. At a break-even length, the best implementation beats alternatives by any factor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nsabench.checks.controls import CHECKS_OF_QUEUE, guarded_regime
from nsabench.model.record import Comparison, Record
from nsabench.model.vocabulary import Catch, Regime, Role, Status, Verdict


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
        """Return whether the status is ok, any verdict `faster`, and `lo` > 1 and >= `limit`."""
        return (
            self.record.status is Status.OK
            and self.comparison.verdict in (None, Verdict.FASTER)  # alternatives give no verdict
            and self.lo is not None
            and self.lo > 1
            and self.lo >= limit
        )


def find_least_length(tested: Sequence[Tested], limit: float) -> tuple[int | None, list[Tested]]:
    """Return the smallest length from which all cases pass, or None, and the cases that fail.

    These have the next smaller length or, if no length passes, the greatest.
    """
    passed: int | None = None
    for length in sorted({case.length for case in tested}, reverse=True):
        cases = [case for case in tested if case.length == length]
        failing = [case for case in cases if not case.passes(limit)]
        if failing:
            return passed, failing
        passed = length
    return passed, []


def find_objections(records: Sequence[Record], op: str, regime: Regime) -> list[str]:
    objections = []
    if any(r.device != "cuda" for r in records):
        objections.append("a CPU decides nothing for a GPU: measure on a GPU")
    missed = {
        r.implementation
        for r in records
        if r.caught is Catch.MISSED and guarded_regime(r.caught_by) in (None, regime)
    }
    if missed:
        objections.append(f"controls were not caught: {', '.join(sorted(missed))}")
    if all(r.role is not Role.CANDIDATE for r in records if r.op == op):
        return objections
    controls = [r for r in records if r.role is Role.CONTROL and r.op == op]
    catches = {r.caught for r in controls}
    if catches.isdisjoint((Catch.CAUGHT, Catch.MISSED)):
        became = "none was caught" if catches else "none ran"
        objections.append(f"no control shows that a mistake in {op} would be noticed: {became}")
    ran = {r.caught_by for r in controls if r.caught not in (None, Catch.UNPROVEN)}
    lacking = [check for check in CHECKS_OF_QUEUE if check not in ran]
    if lacking and regime is Regime.QUEUE:
        objections.append(
            f"no control shows that the checks {' and '.join(lacking)} work for {op}, so nothing "
            f"is decided for calls from Python (the regime queue)"
        )
    return objections

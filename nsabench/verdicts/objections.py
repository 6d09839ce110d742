"""What speaks against any decision of a run: controls that got away, or that were never there."""

from __future__ import annotations

from collections.abc import Sequence

from nsabench.checks import proofs
from nsabench.model.record import Record
from nsabench.model.vocabulary import Catch, Regime, Role

ON_A_CPU = "it was measured on a CPU, which decides nothing for a GPU"


def missed(records: Sequence[Record], regime: Regime | None) -> str:
    """The controls of checks that guard this regime alone, or all, and that were not caught."""
    missed = {
        r.implementation
        for r in records
        if r.caught is Catch.MISSED and proofs.regime_of(r.caught_by) is regime
    }
    return f"controls were not caught: {', '.join(sorted(missed))}" if missed else ""


def without_controls(records: Sequence[Record]) -> dict[str, str]:
    """The ops of which no control was caught or missed, each with an objection."""
    objections = {}
    for op in {r.op for r in records if r.role is Role.CANDIDATE}:
        catches = {r.caught for r in records if r.op == op and r.role is Role.CONTROL}
        if catches.isdisjoint((Catch.CAUGHT, Catch.MISSED)):
            ran = "none was caught" if catches else "none ran"
            objections[op] = f"no control shows that a mistake in {op} would be noticed: {ran}"
    return objections


def _in_queue(record: Record) -> bool:
    """Whether something is asked of a candidate in that regime."""
    return record.role is Role.CANDIDATE and any(
        c.regime is Regime.QUEUE for c in record.comparisons
    )


def without_queue_controls(records: Sequence[Record]) -> dict[str, str]:
    """The ops of which no control was there to show that a slow or hidden host would be noticed,
    each with an objection."""
    objections = {}
    ran = {(r.op, r.caught_by) for r in records if r.caught not in (None, Catch.UNPROVEN)}
    for op in {r.op for r in records if _in_queue(r)}:
        lacking = [check for check in proofs.QUEUE if (op, check) not in ran]
        if lacking:
            objections[op] = (
                f"no control shows that the checks {' and '.join(lacking)} work for {op}: in the "
                f"queue nothing is decided without"
            )
    return objections

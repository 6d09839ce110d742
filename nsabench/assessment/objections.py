"""What speaks against any decision of a run: controls that got away, or that were never there."""

from __future__ import annotations

from collections.abc import Sequence

from nsabench import ops
from nsabench.assessment.checks import proofs
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
    """Ops, as they are called today, of which no control was caught or missed, each with an
    objection. The controls of an op that is retired were there for all that it became."""
    objections = {}
    candidates = (r for r in records if r.role is Role.CANDIDATE)
    for recorded, distribution in {(r.op, r.distribution) for r in candidates}:
        controls = (r for r in records if r.op == recorded and r.role is Role.CONTROL)
        catches = {r.caught for r in controls}
        if catches.isdisjoint((Catch.CAUGHT, Catch.MISSED)):
            op = ops.current_name(recorded, distribution)
            ran = "none was caught" if catches else "none ran"
            objections[op] = f"no control shows that a mistake in {op} would be noticed: {ran}"
    return objections


def _in_queue(record: Record) -> bool:
    """Whether something is asked of a candidate in that regime."""
    return record.role is Role.CANDIDATE and bool(
        record.queue_verdict or record.queue_best_alternative
    )


def without_queue_controls(records: Sequence[Record]) -> dict[str, str]:
    """Ops, as they are called today, of which no control was there to show that a slow or hidden
    host would be noticed, each with an objection."""
    objections = {}
    ran = {(r.op, r.caught_by) for r in records if r.caught not in (None, Catch.UNPROVEN)}
    for recorded, distribution in {(r.op, r.distribution) for r in records if _in_queue(r)}:
        lacking = [check for check in proofs.QUEUE if (recorded, check) not in ran]
        if lacking:
            op = ops.current_name(recorded, distribution)
            objections[op] = (
                f"no control shows that the checks {' and '.join(lacking)} work for {op}: in the "
                f"queue nothing is decided without"
            )
    return objections

"""Objections to the decisions of a run: controls that were missed, or that never ran."""

from __future__ import annotations

from collections.abc import Sequence

from nsabench.checks import proofs
from nsabench.model.record import Record
from nsabench.model.vocabulary import Catch, Regime, Role


def objections(records: Sequence[Record], op: str, regime: Regime) -> list[str]:
    """Return what speaks against a decision about an op in a regime."""
    found = []
    if any(r.device != "cuda" for r in records):
        found.append("it was measured on a CPU, which decides nothing for a GPU")
    missed = {
        r.implementation
        for r in records
        if r.caught is Catch.MISSED and proofs.regime_of(r.caught_by) in (None, regime)
    }
    if missed:
        found.append(f"controls were not caught: {', '.join(sorted(missed))}")
    if all(r.role is not Role.CANDIDATE for r in records if r.op == op):
        return found
    controls = [r for r in records if r.role is Role.CONTROL and r.op == op]
    catches = {r.caught for r in controls}
    if catches.isdisjoint((Catch.CAUGHT, Catch.MISSED)):
        became = "none was caught" if catches else "none ran"
        found.append(f"no control shows that a mistake in {op} would be noticed: {became}")
    ran = {r.caught_by for r in controls if r.caught not in (None, Catch.UNPROVEN)}
    lacking = [check for check in proofs.QUEUE if check not in ran]
    if lacking and regime is Regime.QUEUE:
        found.append(
            f"no control shows that the checks {' and '.join(lacking)} work for {op}: in the "
            f"queue nothing is decided without"
        )
    return found

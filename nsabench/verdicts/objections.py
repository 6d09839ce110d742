"""Objections to the decisions of a run: controls that were missed, or that never ran."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from nsabench.checks import proofs
from nsabench.model.record import Record
from nsabench.model.vocabulary import Catch, Regime, Role

# By op and regime; "" and None stand for all.
Objections = Mapping[tuple[str, Regime | None], list[str]]


def objections(records: Sequence[Record]) -> Objections:
    found: dict[tuple[str, Regime | None], list[str]] = defaultdict(list)
    if any(r.device != "cuda" for r in records):
        found["", None].append("it was measured on a CPU, which decides nothing for a GPU")
    for regime in (None, Regime.QUEUE):
        missed = {
            r.implementation
            for r in records
            if r.caught is Catch.MISSED and proofs.regime_of(r.caught_by) is regime
        }
        if missed:
            found["", regime].append(f"controls were not caught: {', '.join(sorted(missed))}")
    controls = [r for r in records if r.role is Role.CONTROL]
    ran = {(r.op, r.caught_by) for r in controls if r.caught not in (None, Catch.UNPROVEN)}
    for op in sorted({r.op for r in records if r.role is Role.CANDIDATE}):
        catches = {r.caught for r in controls if r.op == op}
        if catches.isdisjoint((Catch.CAUGHT, Catch.MISSED)):
            became = "none was caught" if catches else "none ran"
            found[op, None].append(
                f"no control shows that a mistake in {op} would be noticed: {became}"
            )
        lacking = [check for check in proofs.QUEUE if (op, check) not in ran]
        if lacking:
            found[op, Regime.QUEUE].append(
                f"no control shows that the checks {' and '.join(lacking)} work for {op}: in the "
                f"queue nothing is decided without"
            )
    return found


def against(found: Objections, op: str, regime: Regime) -> list[str]:
    """Return the objections to a decision about an op in a regime."""
    keys = (("", None), (op, None), ("", regime), (op, regime))
    return [sentence for key in keys for sentence in found.get(key, ())]


def joined(parts: Iterable[Objections]) -> Objections:
    whole: dict[tuple[str, Regime | None], list[str]] = defaultdict(list)
    for part in parts:
        for key, sentences in part.items():
            whole[key] += [s for s in sentences if s not in whole[key]]
    return whole

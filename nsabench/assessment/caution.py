"""What a reader must bear in mind beside a verdict: a great ratio over baselines none of which was
made for the op says what a mask or a gather costs, and not what a kernel gains over another."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nsabench.assessment.checks.row import Row
from nsabench.assessment.verdict import Judgement
from nsabench.model.vocabulary import Kind, Role

GREAT = 3.0  # a ratio above it is asked whom it is over
NO_SPECIALISED = "no specialised baseline"


def caution(row: Row, case: Sequence[Row], judgement: Judgement) -> str:
    """Of a candidate whose ratio is great in some regime, if all that was timed beside it in its
    case is general: `NO_SPECIALISED`. Empty otherwise, and where kinds were not recorded."""
    judged = (judgement, judgement.queue or Judgement())
    if not any(j.speedup is not None and j.speedup > GREAT for j in judged):
        return ""
    return unspecialised(r for r in case if r.session == row.session)


def unspecialised(rows: Iterable[Row]) -> str:
    """`NO_SPECIALISED` where every baseline among the rows that was timed is general."""
    kinds = {
        r.kind
        for r in rows
        if r.role is Role.BASELINE and not r.alongside and r.timed_ms is not None
    }
    return NO_SPECIALISED if kinds == {Kind.GENERAL} else ""

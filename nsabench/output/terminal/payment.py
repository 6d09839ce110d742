"""From which length on an op pays, an op and regime a line: what is asked first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nsabench.assessment.pays import CALLED, Payment
from nsabench.model.vocabulary import Pays, Regime


def lines(payments: Sequence[Payment]) -> Iterator[str]:
    """`nsa_attention pays from Python (queue): 64/4 forward from T = 32768, step from T = 8192`."""
    groups: dict[tuple[str, Regime], dict[str, list[Payment]]] = {}
    for p in payments:
        groups.setdefault((p.op, p.regime), {}).setdefault(p.heads, []).append(p)
    for (op, regime), by_heads in groups.items():
        parts = [
            " ".join(filter(None, (heads, ", ".join(f"{p.direction} {_when(p)}" for p in own))))
            for heads, own in by_heads.items()
        ]
        yield f"{op} pays {CALLED[regime]} ({regime}): {'; '.join(parts)}"


def _when(p: Payment) -> str:
    if p.answer is Pays.FROM:
        return f"from {p.axis} = {p.length}"
    if p.answer in (Pays.NO, Pays.NOT_FAR_ENOUGH):
        return f"{p.answer} (up to {p.axis} = {p.greatest})"
    return str(p.answer)

"""From which length on an op paid in the first run, and pays in later ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nsabench.assessment import pays
from nsabench.assessment.pays import Cell, Payment
from nsabench.model.vocabulary import Direction, Pays, Regime
from nsabench.output.compare.side import Side
from nsabench.output.compare.vocabulary import Change

Key = tuple[str, str, Direction, Regime]


@dataclass(frozen=True)
class PaymentShift:
    """A later run against the first. change: `broke` where the op pays later or no more, by more
    than runs of the same code differ; None where nothing changed. cases: by which that is told."""

    change: Change | None
    why: str = ""
    cases: tuple[str, ...] = ()


@dataclass(frozen=True)
class ComparedPayment:
    """An op, head layout, direction and regime: the answer of each run, None where it has none, and
    a shift for each later one."""

    op: str
    heads: str
    direction: Direction
    regime: Regime
    answers: tuple[Payment | None, ...]
    shifts: tuple[PaymentShift, ...]

    @property
    def name(self) -> str:
        """`nsa_attention 64/4 forward (queue)`."""
        what = " ".join(filter(None, (self.op, self.heads, str(self.direction))))
        return f"{what} ({self.regime})"

    def said(self, number: int) -> str:
        """The answer of a run in words."""
        answer = self.answers[number]
        return answer.sentence if answer else "not asked"


def compared(sides: Sequence[Side], band: float, band_in_queue: float) -> Iterator[ComparedPayment]:
    """What pays by the cases that all runs have. The bands are of a ratio to an alternative."""
    common = set.intersection(*({case_id for case_id, _ in side.records} for side in sides))
    decided: list[dict[Key, Payment]] = []
    for side in sides:
        records = [r for r in side.records.values() if r.case_id in common]
        found = pays.decide(records)
        decided.append({(p.op, p.heads, p.direction, p.regime): p for p in found})
    for key in dict.fromkeys(key for of_one in decided for key in of_one):
        op, heads, direction, regime = key
        answers = tuple(of_one.get(key) for of_one in decided)
        width = band_in_queue if regime is Regime.QUEUE else band
        shifts = tuple(_shift(answers[0], later, width) for later in answers[1:])
        yield ComparedPayment(op, heads, direction, regime, answers, shifts)


def _shift(before: Payment | None, after: Payment | None, band: float) -> PaymentShift:
    if before is None or after is None:
        return PaymentShift(None, "only one of the two runs was asked")
    if (before.answer, before.length) == (after.answer, after.length):
        return PaymentShift(None)
    for one in (before, after):
        if one.answer is Pays.NOT_DECIDED:
            return PaymentShift(Change.OTHER, one.why)
    if _pays_less(before, after):
        return _told(Change.BROKE, before, after, band)
    if _pays_less(after, before):
        return _told(Change.MENDED, after, before, band)
    return PaymentShift(Change.OTHER, "at no length in either")


def _pays_less(more: Payment, less: Payment) -> bool:
    """Whether the one pays, and the other from a greater length on, or at none."""
    return more.length is not None and (less.length is None or less.length > more.length)


def _told(change: Change, more: Payment, less: Payment, band: float) -> PaymentShift:
    """Two runs of the same code may differ by a rung where a ratio is near 1. So it takes a case
    that pays in the one, does not in the other, and lies further from it than the band."""
    other = {cell.case_id: cell for cell in less.cells}
    pairs = [
        (cell, other[cell.case_id])
        for cell in more.cells
        if cell.pays and cell.length >= (more.length or 0) and cell.case_id in other
    ]
    cases = tuple(cell.label for cell, there in pairs if _apart(cell, there, band))
    if cases:
        return PaymentShift(change, f"it shows at {cases[0]}", cases)
    unknown = next((there.why for _, there in pairs if there.ratio is None), "")
    return PaymentShift(Change.OTHER, unknown or "by less than two runs of the same code differ")


def _apart(pays: Cell, there: Cell, band: float) -> bool:
    if there.pays or None in (pays.lo, pays.ratio, there.hi, there.ratio):
        return False
    assert pays.lo and pays.ratio and there.hi and there.ratio
    return there.hi < pays.lo and there.ratio < pays.ratio / (1 + band)

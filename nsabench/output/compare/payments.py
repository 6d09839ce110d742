"""Compares the break-even lengths of several runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nsabench.model.vocabulary import Change, Direction, Pays, Regime
from nsabench.output.compare.side import Side
from nsabench.verdicts import break_even
from nsabench.verdicts.break_even import LIMIT, BreakEven
from nsabench.verdicts.series import Tested


@dataclass(frozen=True)
class PaymentShift:
    """A later run against the first. It broke if its break-even length is greater or missing."""

    change: Change | None
    why: str = ""
    cases: tuple[str, ...] = ()


@dataclass(frozen=True)
class ComparedPayment:
    """One break-even decision in all runs. answers: None for a run without it."""

    op: str
    heads: str
    direction: Direction
    regime: Regime
    answers: tuple[BreakEven | None, ...]
    shifts: tuple[PaymentShift, ...]

    @property
    def what(self) -> str:
        return " ".join(filter(None, (self.op, self.heads, self.direction)))

    @property
    def name(self) -> str:
        """Return `nsa_attention 64/4 forward (queue)`."""
        return f"{self.what} ({self.regime})"

    def said(self, number: int) -> str:
        answer = self.answers[number]
        return answer.sentence if answer else "not asked"


def compared(sides: Sequence[Side], band: float, band_in_queue: float) -> Iterator[ComparedPayment]:
    """Decide by the cases that all runs have. The bands are of ratios to an alternative."""
    common = set.intersection(*({case_id for case_id, _ in side.records} for side in sides))
    decided = [
        {
            (p.op, p.heads, p.direction, p.regime): p
            for p in break_even.decide([r for r in side.records.values() if r.case_id in common])
        }
        for side in sides
    ]
    for key in dict.fromkeys(key for by_key in decided for key in by_key):
        op, heads, direction, regime = key
        answers = tuple(by_key.get(key) for by_key in decided)
        width = band_in_queue if regime is Regime.QUEUE else band
        shifts = tuple(_compare_answers(answers[0], later, width) for later in answers[1:])
        yield ComparedPayment(op, heads, direction, regime, answers, shifts)


def _compare_answers(
    before: BreakEven | None, after: BreakEven | None, band: float
) -> PaymentShift:
    if before is None or after is None:
        return PaymentShift(None, "only one of the two runs was asked")
    if (before.answer, before.length) == (after.answer, after.length):
        return PaymentShift(None)
    for payment in (before, after):
        if payment.answer is Pays.NOT_DECIDED:
            return PaymentShift(Change.OTHER, payment.why)
    if _pays_less(before, after):
        return _find_cases(Change.BROKE, before, after, band)
    if _pays_less(after, before):
        return _find_cases(Change.MENDED, after, before, band)
    return PaymentShift(Change.OTHER, "at no length in either")


def _pays_less(more: BreakEven, less: BreakEven) -> bool:
    return more.length is not None and (less.length is None or less.length > more.length)


def _find_cases(change: Change, more: BreakEven, less: BreakEven, band: float) -> PaymentShift:
    """Return the change if a case shows it: its ratios must differ by more than the band."""
    other = {case.record.case_id: case for case in less.tested}
    pairs = [
        (case, other[case.record.case_id])
        for case in more.tested
        if case.passes(LIMIT) and case.length >= (more.length or 0) and case.record.case_id in other
    ]
    cases = tuple(case.label for case, other_case in pairs if _are_apart(case, other_case, band))
    if cases:
        return PaymentShift(change, f"it shows at {cases[0]}", cases)
    unknown = next(
        (other_case.why for _, other_case in pairs if other_case.comparison.ratio is None), ""
    )
    return PaymentShift(Change.OTHER, unknown or "by less than two runs of the same code differ")


def _are_apart(more: Tested, less: Tested, band: float) -> bool:
    a, b = more.comparison, less.comparison
    if less.passes(LIMIT) or None in (a.lo, a.ratio, b.hi, b.ratio):
        return False
    assert a.lo and a.ratio and b.hi and b.ratio
    return b.hi < a.lo and b.ratio < a.ratio / (1 + band)

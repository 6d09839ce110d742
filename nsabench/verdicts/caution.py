"""Find verdicts that need a caution: great ratios without a specialised baseline.

Such a ratio says what a mask or a gather costs, not what a kernel gains over another kernel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from nsabench.model.record import Record
from nsabench.model.vocabulary import NO_SPECIALISED, Kind, Reference, Regime, Role

GREAT = 3.0  # a higher ratio needs a specialised baseline
BEHIND = 2.0  # times the best: a specialised baseline that takes longer does not count


def caution(record: Record, case: Sequence[Record]) -> str:
    """Return `NO_SPECIALISED` for a candidate with a great ratio in some regime, if no specialised
    baseline was timed in its attempt or all were far behind. Else return an empty text."""
    ratios = [c.ratio for c in record.comparisons if c.reference is Reference.BASELINE]
    if not any(ratio is not None and ratio > GREAT for ratio in ratios):
        return ""
    timed = [
        (r.kind, r.median_ms)
        for r in case
        if r.attempt == record.attempt
        and r.role is Role.BASELINE
        and not r.alongside
        and r.median_ms is not None
    ]
    best = min((ms for _, ms in timed), default=0.0)
    counting = {k for k, ms in timed if k is not Kind.SPECIALISED or ms <= BEHIND * best}
    return NO_SPECIALISED if counting == {Kind.GENERAL} else ""


def speedups(records: Iterable[Record], regime: Regime) -> list[float]:
    """Return the ratios in a regime that an average includes: those without a caution."""
    compared = [r.compared(regime) for r in records if not beside(r, regime)]
    return [c.ratio for c in compared if c is not None and c.ratio is not None]


def beside(record: Record, regime: Regime) -> str:
    """Return a record's caution if its ratio in the regime is great."""
    compared = record.compared(regime)
    great = compared is not None and compared.ratio is not None and compared.ratio > GREAT
    return record.caution if great else ""


def tally(cautions: Iterable[str]) -> str:
    """Count cautions in words: `no specialised baseline in 3 of 16`; empty without any."""
    given = list(cautions)
    counts = Counter(text for text in given if text)
    return "; ".join(f"{text} in {n} of {len(given)}" for text, n in counts.items())

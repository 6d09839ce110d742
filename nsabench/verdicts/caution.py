"""What a reader must bear in mind beside a verdict: a great ratio over baselines none of which was
made for the op says what a mask or a gather costs, and not what a kernel gains over another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from nsabench.model.record import Record
from nsabench.model.vocabulary import NO_SPECIALISED, Kind, Reference, Regime, Role

GREAT = 3.0  # a ratio above it is asked whom it is over
# Times the best: what was made for the op and takes longer shows nothing of what can be.
BEHIND = 2.0


def caution(record: Record, case: Sequence[Record]) -> str:
    """Of a candidate whose ratio is great in some regime, if all that was timed beside it in its
    case is general, or specialised and far behind: `NO_SPECIALISED`. Empty otherwise."""
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
    return NO_SPECIALISED if all_general(timed) else ""


def speedups(records: Iterable[Record], regime: Regime) -> list[float]:
    """The ratios that an average in a regime is made of. One over a slow loop alone says nothing of
    the kernel, and is left out."""
    compared = [r.compared(regime) for r in records if not beside(r, regime)]
    return [c.ratio for c in compared if c is not None and c.ratio is not None]


def all_general(timed: Sequence[tuple[Kind | None, float]]) -> bool:
    """Whether all baselines that count are general, of kinds and times (ms). A specialised one that
    takes more than twice as long as the best counts for none."""
    best = min((ms for _, ms in timed), default=0.0)
    counting = {k for k, ms in timed if k is not Kind.SPECIALISED or ms <= BEHIND * best}
    return counting == {Kind.GENERAL}


def beside(record: Record, regime: Regime) -> str:
    """What is to be borne in mind beside the verdict in a regime: a record's caution stands beside
    the ratio that is great, and not beside one of another regime."""
    compared = record.compared(regime)
    great = compared is not None and compared.ratio is not None and compared.ratio > GREAT
    return record.caution if great else ""


def tally(cautions: Iterable[str]) -> str:
    """How many of them say what: `no specialised baseline in 3 of 16`; empty where none does."""
    given = list(cautions)
    counts = Counter(text for text in given if text)
    return "; ".join(f"{text} in {n} of {len(given)}" for text, n in counts.items())

"""Statistics of candidates by range of length and by distribution."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nsabench.assessment.caution import beside, tally
from nsabench.assessment.statistics import geometric_mean
from nsabench.model.record import Record
from nsabench.model.vocabulary import Mode
from nsabench.output.report.facts import Facts

MOST_LENGTHS = 16


@dataclass(frozen=True)
class Group:
    """Some cases of one candidate. Ratios are those of cases that have one; None: there is none."""

    op: str
    implementation: str
    name: str
    cases: int
    compared: int
    meeting: int  # lower end of the interval at or above the margin
    average: float | None  # geometric mean, which treats 2x and 0.5x alike
    best: float | None
    worst: float | None
    over_tolerance: int
    verdicts: Counter[str]
    caution: str = ""  # what to bear in mind beside the ratios, and of how many


def by_length(facts: Facts) -> list[Group]:
    """Groups by length; where those are too many to read, by powers of two: 64-127, 128-255."""
    lengths = {r.length for r in facts.candidates}
    exact = len(lengths) <= MOST_LENGTHS
    return _grouped(facts, lambda r: (r.length, str(r.length)) if exact else _range(r.length))


def by_distribution(facts: Facts) -> list[Group]:
    """Replays of a graph apart from calls."""

    def name(record: Record) -> str:
        graph = [Mode.GRAPH] if record.mode is Mode.GRAPH else []
        return ", ".join([record.distribution, record.direction, *graph])

    return _grouped(facts, lambda r: (0, name(r)))


def _range(length: int) -> tuple[int, str]:
    low = 1 << max(length.bit_length() - 1, 0) if length else 0
    return low, f"{low}–{2 * low - 1}" if low > 1 else str(length)


def _grouped(facts: Facts, key: Any) -> list[Group]:
    groups: dict[tuple[str, str, tuple[int, str]], list[Record]] = {}
    for record in facts.candidates:
        place = (record.op, record.implementation, key(record))
        groups.setdefault(place, []).append(record)
    return [
        _group(op, who, name, groups[op, who, (low, name)], facts)
        for op, who, (low, name) in sorted(groups)
    ]


def _group(op: str, who: str, name: str, rows: Sequence[Record], facts: Facts) -> Group:
    ratios = [r.speedup for r in rows if r.speedup is not None]
    return Group(
        op,
        who,
        name,
        len(rows),
        len(ratios),
        sum(r.speedup_lo is not None and r.speedup_lo >= facts.plan.margin for r in rows),
        geometric_mean(ratios),
        max(ratios, default=None),
        min(ratios, default=None),
        sum(r.mae is not None and not r.mae <= facts.tolerances[r.case_id] for r in rows),
        Counter(r.verdict for r in rows if r.verdict),
        tally(beside(r, r.regime) for r in rows if r.speedup is not None),
    )

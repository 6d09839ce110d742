"""Statistics of candidates by range of length and by distribution."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nsabench.model.record import Record
from nsabench.model.vocabulary import Mode
from nsabench.output import grouped
from nsabench.output.document import Name, Table, number
from nsabench.output.report.facts import Facts
from nsabench.verdicts.caution import beside, tally
from nsabench.verdicts.statistics import geometric_mean

MOST_LENGTHS = 16


def by_length(facts: Facts, *, ops: bool = False) -> Table:
    """By length, or by powers of two if there are many: 64-127, 128-255. ops: name the ops."""
    exact = len({r.length for r in facts.candidates}) <= MOST_LENGTHS

    def key(record: Record) -> tuple[int, str]:
        return (record.length, str(record.length)) if exact else _range(record.length)

    return _table(facts, "length", key, ops)


def by_distribution(facts: Facts) -> Table:
    """Replays of a graph are apart from calls."""

    def key(record: Record) -> tuple[int, str]:
        graph = [Mode.GRAPH] if record.mode is Mode.GRAPH else []
        return 0, ", ".join([record.distribution, record.direction, *graph])

    return _table(facts, "distribution", key, ops=False)


def _range(length: int) -> tuple[int, str]:
    low = 1 << max(length.bit_length() - 1, 0) if length else 0
    return low, f"{low}–{2 * low - 1}" if low > 1 else str(length)


def _table(facts: Facts, title: str, key: Callable[[Record], tuple[int, str]], ops: bool) -> Table:
    """key: the place of the group of a record, and its name."""
    groups = grouped(facts.candidates, lambda r: (r.op, r.implementation, key(r)))
    rows = [
        (Name(who), *([op] if ops else []), *_cells(name, groups[op, who, (place, name)], facts))
        for op, who, (place, name) in sorted(groups)
    ]
    margin = f"≥ {facts.plan.margin:g}×"
    numbers = ("compared", margin, "average", "best", "worst", "over tolerance")
    columns = ("candidate", *(["op"] if ops else []), title, *numbers)
    return Table(f"Statistics by {title}", columns, rows, numbers)


def _cells(name: str, records: Sequence[Record], facts: Facts) -> tuple[str, ...]:
    ratios = [r.speedup for r in records if r.speedup is not None]
    caution = tally(beside(r, r.regime) for r in records if r.speedup is not None)
    margin, tolerances = facts.plan.margin, facts.tolerances
    return (
        f"{name} ({caution})" if caution else name,
        f"{len(ratios)} of {len(records)}",
        # The lower end of the interval counts.
        str(sum(r.speedup_lo is not None and r.speedup_lo >= margin for r in records)),
        number(geometric_mean(ratios), ".2f"),
        number(max(ratios, default=None), ".2f"),
        number(min(ratios, default=None), ".2f"),
        str(sum(r.mae is not None and not r.mae <= tolerances[r.case_id] for r in records)),
    )

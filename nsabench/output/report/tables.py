"""The tables of a report that need more than records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from statistics import median

from nsabench import labels
from nsabench.model.record import Record
from nsabench.model.vocabulary import Mode, Role
from nsabench.output import grouped
from nsabench.output.document import Block, Name, Sentence, Table, number
from nsabench.output.report.facts import Facts
from nsabench.verdicts.canary import canary_of
from nsabench.verdicts.caution import beside, tally
from nsabench.verdicts.statistics import geometric_mean

MOST_LENGTHS = 16


@dataclass(frozen=True)
class Statistics:
    """Tables of candidates. tolerances: MAE by case, empty if they are not known."""

    candidates: Sequence[Record]
    margin: float
    tolerances: Mapping[str, float]

    def by_length(self, *, ops: bool = False) -> Table:
        """Return a row for each length, or for each power of two if there are many lengths."""
        exact = len({r.length for r in self.candidates}) <= MOST_LENGTHS

        def key(record: Record) -> tuple[int, str]:
            low = 1 << max(record.length.bit_length() - 1, 0)
            if exact or record.length < 2:
                return record.length, str(record.length)
            return low, f"{low}–{2 * low - 1}"

        return self._build_table("length", key, ops)

    def by_distribution(self) -> Table:
        def key(record: Record) -> tuple[int, str]:
            graph = [Mode.GRAPH] if record.mode is Mode.GRAPH else []
            return 0, ", ".join([record.distribution, record.direction, *graph])

        return self._build_table("distribution", key, ops=False)

    def _build_table(
        self, title: str, key: Callable[[Record], tuple[int, str]], ops: bool
    ) -> Table:
        """key: the order of a record's group, and its name."""
        groups = grouped(self.candidates, lambda r: (r.op, r.implementation, key(r)))
        rows = [
            (
                Name(place[1]),
                *([place[0]] if ops else []),
                *self._format_cells(place[2][1], records),
            )
            for place, records in sorted(groups.items(), key=lambda item: item[0])
        ]
        numbers = ("compared", f"≥ {self.margin:g}×", "average", "best", "worst", "over tolerance")
        columns = ("candidate", *(["op"] if ops else []), title, *numbers)
        return Table(f"Statistics by {title}", columns, rows, numbers)

    def _format_cells(self, name: str, records: Sequence[Record]) -> tuple[str, ...]:
        ratios = [r.speedup for r in records if r.speedup is not None]
        caution = tally(beside(r, r.regime) for r in records if r.speedup is not None)
        limits = self.tolerances
        over = sum(r.mae is not None and not r.mae <= limits.get(r.case_id, inf) for r in records)
        return (
            f"{name} ({caution})" if caution else name,
            f"{len(ratios)} of {len(records)}",
            # The lower end of the interval counts.
            str(sum(r.speedup_lo is not None and r.speedup_lo >= self.margin for r in records)),
            number(geometric_mean(ratios), ".2f"),
            number(max(ratios, default=None), ".2f"),
            number(min(ratios, default=None), ".2f"),
            str(over) if limits else "–",
        )


def shards(facts: Facts) -> Iterator[Block]:
    """Yield what each shard of a merged run measured, and whether the devices agree.

    All shards measure one case. The times are of the baseline that most shards timed on it.
    """
    plan, parts = facts.plan, facts.parts
    ends = {part.plan.run_id: canary_of(part.plan, part.log) for part in parts}
    baselines = {i.name for i in plan.implementations if i.role is Role.BASELINE}
    timed = Counter(name for end in ends.values() for name in end.medians)
    name = max(timed, key=lambda name: (name in baselines, timed[name]), default="")
    times = {run_id: end.medians[name] for run_id, end in ends.items() if name in end.medians}
    sound = [ms for run_id, ms in times.items() if not ends[run_id].disturbed]
    middle = median(sound or times.values()) if times else 1.0
    if plan.canary is None:
        yield Sentence("The plan has no case that all shards measure.")
    else:
        case = labels.of_case(plan.canary.case)
        what = f"Times of {name} on {case}" if name else f"No shard timed {case}"
        count = f"{len(times)} of {len(parts)} shards have one"
        yield Sentence(f"{what}, which each shard measures at its end: {count}.")
    rows = []
    for part in parts:
        run_id, end = part.plan.run_id, ends[part.plan.run_id]
        counts = (str(len(part.plan.cases)), f"{part.log.wall_s:.0f}")
        ms = times.get(run_id)
        ratio = number(ms and ms / middle, ".3f")
        remark = end.disturbed or end.failed.get(name, "") or end.lost or "–"
        rows.append((part.plan.shard, Name(run_id), *counts, number(ms, ".4g"), ratio, remark))
    numbers = ("cases", "seconds", "at its end, ms", "over the median of all")
    yield Table("Shards", ("shard", "run", *numbers, "remark"), rows, numbers, is_long=True)

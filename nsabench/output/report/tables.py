"""The tables of a report that need more than records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from statistics import median

from nsabench import labels
from nsabench.model.record import Record
from nsabench.model.vocabulary import Role
from nsabench.output import grouped
from nsabench.output.document import Block, Name, Sentence, Table, number
from nsabench.output.report.facts import Facts
from nsabench.verdicts.merged import read_canary
from nsabench.verdicts.statistics import geometric_mean
from nsabench.verdicts.verdict import count_cautions


def by_length(
    candidates: Sequence[Record],
    margin: float,
    tolerances: Mapping[str, float],
    *,
    ops: bool = False,
) -> Table:
    """Return a row for each candidate and length. tolerances: MAE by case; ops: name the op."""
    groups = grouped(candidates, lambda r: (r.op, r.implementation, r.length))
    rows = []
    for (op, name, length), records in sorted(groups.items()):
        ratios = [r.speedup for r in records if r.speedup is not None]
        caution = count_cautions(r.caution_in(r.regime) for r in records if r.speedup is not None)
        over = sum(
            r.mae is not None and not r.mae <= tolerances.get(r.case_id, inf) for r in records
        )
        rows.append(
            (
                Name(name),
                *([op] if ops else []),
                f"{length} ({caution})" if caution else str(length),
                f"{len(ratios)} of {len(records)}",
                # The lower end of the interval counts.
                str(sum(r.speedup_lo is not None and r.speedup_lo >= margin for r in records)),
                number(geometric_mean(ratios), ".2f"),
                number(max(ratios, default=None), ".2f"),
                number(min(ratios, default=None), ".2f"),
                str(over) if tolerances else "–",
            )
        )
    numbers = ("compared", f"≥ {margin:g}×", "average", "best", "worst", "over tolerance")
    columns = ("candidate", *(["op"] if ops else []), "length", *numbers)
    return Table("Statistics by length", columns, rows, numbers)


def shards(facts: Facts) -> Iterator[Block]:
    """Yield what each shard of a merged run measured, and whether the devices agree.

    All shards measure one case. The times are of the baseline that most shards timed on it.
    """
    plan, parts = facts.plan, facts.parts
    ends = {part.plan.run_id: read_canary(part.plan, part.log) for part in parts}
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

from collections import Counter
from collections.abc import Iterator
from statistics import median

from nsabench import labels
from nsabench.model.vocabulary import Role
from nsabench.output.document import Block, Name, Sentence, TableBlock, number
from nsabench.output.report.facts import Facts
from nsabench.verdicts.results import read_canary


def shards(facts: Facts) -> Iterator[Block]:
    """Yield a sentence and a table that show whether the devices of a merged run's shards agree.

    The times are those of one implementation on the canary: if possible, of a baseline.
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
        case = labels.case_with_op(plan.canary.case)
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
        key = facts.shard_keys.get(run_id, "a signature that is broken")
        times_of = (number(ms, ".4g"), ratio)
        rows.append((part.plan.shard, Name(run_id), *counts, *times_of, key, remark))
    numbers = ("cases", "seconds", "at its end, ms", "over the median of all")
    yield TableBlock(
        "Shards", ("shard", "run", *numbers, "signed with", "remark"), rows, numbers, is_long=True
    )

"""A plan in parts that are measured as runs of their own, and never part a ladder."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Sequence

from nsabench import ops
from nsabench.errors import UsageError
from nsabench.model.plan import PlannedCase


def share(cases: Sequence[PlannedCase], shard: str) -> list[PlannedCase]:
    """The cases of the shard `i/n`, in the order of the plan.

    A ladder stays whole: what looks along a length would not find in a part what it finds in the
    whole. The largest ladder goes first, each to the shard that has the fewest cases.

    Raises `UsageError` when `shard` is not `i/n`, or has no ladder.
    """
    match = re.fullmatch(r"(\d+)/(\d+)", shard)
    index, count = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= index <= count:
        raise UsageError(
            f"{shard!r} is not a shard", "write i/n with 1 <= i <= n, for example 2/4."
        )
    ladders: dict[Hashable, list[PlannedCase]] = defaultdict(list)
    for planned in cases:
        ladders[ops.ladder(planned.case)].append(planned)
    if index > len(ladders):
        raise UsageError(
            f"shard {shard} is empty: the {len(cases)} cases make {len(ladders)} ladders, and "
            f"those that differ only in their length stay together",
            f"take no more than {len(ladders)} shards.",
        )
    sizes = [0] * min(count, len(ladders))  # of the shards; further ones would be empty
    mine: set[str] = set()
    for ladder in sorted(ladders.values(), key=len, reverse=True):
        smallest = sizes.index(min(sizes))
        sizes[smallest] += len(ladder)
        if smallest == index - 1:
            mine.update(planned.id for planned in ladder)
    return [planned for planned in cases if planned.id in mine]

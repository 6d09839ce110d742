"""Whether shards can be one run: one plan, code, version, driver and GPU model, each case once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from nsabench.errors import UsageError
from nsabench.fleet.shard import Shard

NAMED = 5  # cases in a sentence
OF_A_PLAN = (
    "number of shards",
    "matrices",
    "plan",
    "conditions",
    "canary",
    "margin",
    "device",
)


def refuse_others(first: Shard, other: Shard) -> None:
    """Raises `UsageError` when two shards have other plans, or were measured otherwise."""
    for what, value in other.traits.items():
        expected = first.traits[what]
        if value == expected:
            continue
        if what in OF_A_PLAN:
            raise UsageError(
                f"{other.folder} is a shard of another plan than {first.folder}: the {what} "
                f"differ{_values(value, expected)}",
                "give the shards of one plan; `nsabench compare` and `nsabench threshold` take "
                "runs of several.",
            )
        raise UsageError(
            f"{other.folder} and {first.folder} are not parts of one run: the {what} "
            f"differ{_values(value, expected)}",
            "merge the shards that are alike, and compare the merged runs with `nsabench compare`.",
        )


def _values(value: str, expected: str) -> str:
    if max(len(value), len(expected)) > 100:
        return ""
    return f", {value or 'none'} and {expected or 'none'}"


def refuse_gaps(shards: Sequence[Shard]) -> None:
    """Raises `UsageError` when a case of the plan is missing, or there twice."""
    planned = shards[0].plan.whole.split()
    counts = Counter(case.id for shard in shards for case in shard.cases)
    twice = [case_id for case_id in planned if counts[case_id] > 1]
    if twice:
        both = [s for s in shards if any(case.id == twice[0] for case in s.cases)]
        raise UsageError(
            f"{_cases(twice)} there twice: in {' and in '.join(str(s) for s in both)}",
            "give each shard once.",
        )
    missing = [case_id for case_id in planned if not counts[case_id]]
    if missing:
        there = {shard.index for shard in shards}
        lacking = [i for i in range(1, shards[0].count + 1) if i not in there]
        which = ", ".join(f"{i}/{shards[0].count}" for i in lacking[:NAMED])
        more = f" and {len(lacking) - NAMED} more" if len(lacking) > NAMED else ""
        raise UsageError(
            f"{_cases(missing)} missing: shard {which}{more} is not among those given",
            "give them also, or measure them with `nsabench all --shard i/n`.",
        )


def _cases(ids: Collection[str]) -> str:
    named = ", ".join(sorted(ids)[:NAMED])
    if len(ids) == 1:
        return f"the case {named} is"
    more = f" and {len(ids) - NAMED} more" if len(ids) > NAMED else ""
    return f"{len(ids)} cases ({named}{more}) are"

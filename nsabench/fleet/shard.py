"""Verify shards, and refuse those that do not make up one run."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nsabench.errors import UsageError
from nsabench.evidence.manifest import MANIFEST, files, verify
from nsabench.evidence.manifest.logs import Logged
from nsabench.evidence.manifest.statement import Trust
from nsabench.machine.environment.model import Environment
from nsabench.model.description import Described
from nsabench.model.plan import Plan, PlannedCase
from nsabench.running.folder import RunFolder

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


@dataclass(frozen=True)
class Shard:
    """A verified shard, number `index` of `count`.

    traits: values that all shards must share. digests: the sha256 of its files.
    """

    folder: Path
    index: int
    count: int
    plan: Plan
    logged: Logged
    digests: dict[str, str]
    traits: dict[str, str]

    def __str__(self) -> str:
        return f"{self.folder} (shard {self.plan.shard})"

    @property
    def cases(self) -> list[PlannedCase]:
        return self.plan.cases

    def sharing(self, first: Shard) -> Shard:
        """Return this shard without traits, sharing the equal parts of its plan with another
        one."""
        changed: dict[str, Any] = {"whole": first.plan.whole}
        if self.plan.implementations == first.plan.implementations:
            changed["implementations"] = first.plan.implementations
        return replace(self, plan=self.plan.model_copy(update=changed), traits={})


def admit(folder: Path, trusted: Iterable[str], require: Trust) -> Shard:
    """Verify the shard in a folder, except for its tables, which a merge derives again.

    Raises `UsageError` for a folder without a shard, and `VerificationFailed` for one that was
    altered or is trusted less than required.
    """
    run = RunFolder.existing(folder)
    least = require if require.reaches(Trust.EPHEMERAL) else Trust.EPHEMERAL
    report = verify(folder, trusted=trusted, require=least, tables=False)
    report.raise_if_broken()
    plan, logged = report.plan, report.logged
    assert plan is not None and logged is not None
    if plan.shards:
        raise UsageError(f"{folder} is a merged run", "give its shards.")
    named = re.fullmatch(r"(\d+)/(\d+)", plan.shard)
    if named is None or not plan.whole:
        raise UsageError(
            f"{folder} is not a shard: it has shard {plan.shard} of a plan that it does not name",
            "give runs that `nsabench all --shard i/n` of this version has made.",
        )
    return Shard(
        folder=folder,
        index=int(named[1]),
        count=int(named[2]),
        plan=plan,
        logged=logged,
        digests={**report.digests, MANIFEST: files.sha256(folder, MANIFEST)},
        traits=_read_traits(plan, logged.described, Environment.read(run.environment)),
    )


def _read_traits(plan: Plan, described: Described, environment: Environment) -> dict[str, str]:
    software, device = described.software, described.device
    sources = ", ".join(f"{of} {sha256[:12]}" for of, sha256 in sorted(plan.sources.items()))
    matrices = ", ".join(f"{m.name} {m.sha256[:12]}" for m in plan.matrices)
    return {
        "number of shards": plan.shard.partition("/")[2],
        "matrices": matrices,
        "plan": plan.whole,
        "conditions": " and ".join(plan.where),
        "canary": plan.canary.id if plan.canary else "",
        "margin": f"{plan.margin:g}",
        "device": plan.device,
        "sandbox": str(plan.sandboxed),
        "nsabench": plan.nsabench,
        "source": sources,
        "kernels file": plan.kernels_sha256,
        "ops file": plan.ops_sha256,
        "GPU model": device.name or "",
        "CPU's instructions": device.capability or "",
        "driver": environment.driver.version or "",
        "torch": software.torch or "",
        "Triton": software.triton or "",
        "CUDA": software.torch_cuda or "",
        "Python": environment.software.python,
    }


def refuse_others(first: Shard, other: Shard) -> None:
    """Raise `UsageError` if two shards have different plans or conditions."""
    for what, value in other.traits.items():
        expected = first.traits[what]
        if value == expected:
            continue
        if what in OF_A_PLAN:
            raise UsageError(
                f"{other.folder} is a shard of another plan than {first.folder}: the {what} "
                f"differ{_list_values(value, expected)}",
                "give the shards of one plan; `nsabench compare` and `nsabench threshold` take "
                "runs of several.",
            )
        raise UsageError(
            f"{other.folder} and {first.folder} are not parts of one run: the {what} "
            f"differ{_list_values(value, expected)}",
            "merge the shards that are alike, and compare the merged runs with `nsabench compare`.",
        )


def _list_values(value: str, expected: str) -> str:
    if max(len(value), len(expected)) > 100:
        return ""
    return f", {value or 'none'} and {expected or 'none'}"


def refuse_gaps(shards: Sequence[Shard]) -> None:
    """Raise `UsageError` if a case of the plan is missing or occurs twice."""
    planned = shards[0].plan.whole.split()
    counts = Counter(case.id for shard in shards for case in shard.cases)
    twice = [case_id for case_id in planned if counts[case_id] > 1]
    if twice:
        both = [s for s in shards if any(case.id == twice[0] for case in s.cases)]
        raise UsageError(
            f"{_list_cases(twice)} there twice: in {' and in '.join(str(s) for s in both)}",
            "give each shard once.",
        )
    missing = [case_id for case_id in planned if not counts[case_id]]
    if missing:
        there = {shard.index for shard in shards}
        lacking = [i for i in range(1, shards[0].count + 1) if i not in there]
        which = ", ".join(f"{i}/{shards[0].count}" for i in lacking[:NAMED])
        more = f" and {len(lacking) - NAMED} more" if len(lacking) > NAMED else ""
        raise UsageError(
            f"{_list_cases(missing)} missing: shard {which}{more} is not among those given",
            "give them also, or measure them with `nsabench all --shard i/n`.",
        )


def _list_cases(ids: Collection[str]) -> str:
    named = ", ".join(sorted(ids)[:NAMED])
    if len(ids) == 1:
        return f"the case {named} is"
    more = f" and {len(ids) - NAMED} more" if len(ids) > NAMED else ""
    return f"{len(ids)} cases ({named}{more}) are"

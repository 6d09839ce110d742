"""Verify a shard, and keep the little of it that a merge of a thousand shards needs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nsabench.errors import UsageError
from nsabench.evidence.manifest import MANIFEST, files, verify
from nsabench.evidence.manifest.logs import Logged
from nsabench.evidence.manifest.statement import Trust
from nsabench.execution.folder import RunFolder
from nsabench.machine.environment.model import Environment
from nsabench.model.description import Described
from nsabench.model.plan import Plan, PlannedCase


@dataclass(frozen=True)
class Shard:
    """One verified shard.

    index, count: of `i/n`. traits: what all shards must have in common, by name. digests: of its
    files, sha256.
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
        """Return the same shard without its traits, sharing memory with another one."""
        changed: dict[str, Any] = {"whole": first.plan.whole}
        if self.plan.implementations == first.plan.implementations:
            changed["implementations"] = first.plan.implementations
        return replace(self, plan=self.plan.model_copy(update=changed), traits={})


def admit(folder: Path, trusted: Iterable[str], require: Trust) -> Shard:
    """Verify the shard in a folder. Its tables are not read, since a merge derives them anew.

    Raises `UsageError` for a folder without a shard, and `VerificationFailed` for one that was
    altered, or is trusted less than required.
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
        plan=plan.without_content(),
        logged=logged,
        digests={**report.digests, MANIFEST: files.sha256(folder, MANIFEST)},
        traits=_traits(plan, logged.described, Environment.read(run.environment)),
    )


def _traits(plan: Plan, described: Described, environment: Environment) -> dict[str, str]:
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

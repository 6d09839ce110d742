"""Verify a shard, and keep the little of it that a merge of a thousand shards needs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nsabench.assessment import canary
from nsabench.assessment.canary import Canary
from nsabench.errors import UsageError
from nsabench.evidence.manifest import MANIFEST, files, verify
from nsabench.evidence.manifest.journaled import Journaled
from nsabench.evidence.manifest.statement import Trust
from nsabench.execution import journal
from nsabench.execution.folder import RunFolder
from nsabench.machine.environment.model import Environment
from nsabench.model.journal import Contents, Entry, Line
from nsabench.model.plan import MergedShard, Plan, PlannedCase
from nsabench.model.vocabulary import PassName


@dataclass(frozen=True)
class Shard:
    """One verified shard.

    index, count: of `i/n`; journaled: a digest of its journal; traits: what all shards must have in
    common, by name.
    """

    folder: Path
    info: MergedShard
    index: int
    count: int
    plan: Plan
    journaled: Journaled
    canary: Canary
    traits: dict[str, str]
    logs: list[str]

    def __str__(self) -> str:
        return f"{self.folder} (shard {self.info.shard})"

    @property
    def cases(self) -> list[PlannedCase]:
        return self.plan.cases

    @property
    def journal(self) -> Path:
        return RunFolder(self.folder).journal

    def sharing(self, first: Shard) -> Shard:
        """Return the same shard without its traits, sharing memory with another one."""
        changed: dict[str, Any] = {"whole": first.plan.whole}
        if self.plan.implementations == first.plan.implementations:
            changed["implementations"] = first.plan.implementations
        return replace(self, plan=self.plan.model_copy(update=changed), traits={})

    def contents(self) -> Contents:
        """Read its journal."""
        return journal.read(self.journal)


def admit(folder: Path, trusted: Iterable[str], require: Trust) -> Shard:
    """Verify the shard in a folder. Its tables are not read, since a merge derives them anew.

    Raises `UsageError` for a folder without a shard, and `VerificationFailed` for one that was
    altered, or is trusted less than required.
    """
    run = RunFolder.existing(folder)
    least = require if require.reaches(Trust.EPHEMERAL) else Trust.EPHEMERAL
    contents = Contents()

    def seen(line: Line) -> None:
        # Only the canary's entry is needed, of many.
        if not isinstance(line, Entry) or line.pass_name is PassName.CANARY:
            contents.add(line)

    report = verify(folder, trusted=trusted, require=least, tables=False, seen=seen)
    report.raise_if_broken()
    plan, journaled = report.plan, report.journaled
    assert plan is not None and journaled is not None
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
        info=MergedShard(
            run_id=plan.run_id,
            shard=plan.shard,
            plan_sha256=report.digests["plan.json"],
            environment_sha256=report.digests["environment.json"],
            journal_sha256=report.digests["journal.jsonl"],
            manifest_sha256=files.sha256(folder, MANIFEST),
            keyid=report.keyid,
            trust=report.trust.value,
        ),
        index=int(named[1]),
        count=int(named[2]),
        plan=plan.without_content(),
        journaled=journaled,
        canary=canary.of_contents(contents),
        traits=_traits(plan, contents, Environment.read(run.environment)),
        logs=[name for name in report.digests if name.startswith("logs/")],
    )


def _traits(plan: Plan, contents: Contents, environment: Environment) -> dict[str, str]:
    header = contents.headers[0]
    software, device = header.described.software, header.described.device
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

"""A shard as it was left by the host that measured it: verified, and what is held against others'.

A fleet may have a thousand of them, so little of each is kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nsabench.assessment import canary
from nsabench.assessment.canary import Canary
from nsabench.errors import UsageError
from nsabench.evidence.manifest import files, verify
from nsabench.evidence.manifest.journaled import Journaled
from nsabench.evidence.manifest.seal import MANIFEST
from nsabench.evidence.manifest.statement import Trust
from nsabench.execution import journal
from nsabench.execution.folder import RunFolder
from nsabench.machine.environment.model import Environment
from nsabench.model.journal import Contents, Entry, Line
from nsabench.model.plan import MergedShard, Plan, PlannedCase
from nsabench.model.vocabulary import PassName


@dataclass(frozen=True)
class Shard:
    """One verified shard. index, count: of `i/n`; journaled: what its journal holds; traits: what
    must be the same in all shards, by what it is called."""

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
        """The same, holding what it has in common with another only once, and no traits."""
        changed: dict[str, Any] = {"whole": first.plan.whole}
        if self.plan.implementations == first.plan.implementations:
            changed["implementations"] = first.plan.implementations
        return replace(self, plan=self.plan.model_copy(update=changed), traits={})

    def contents(self) -> Contents:
        """All that it journaled."""
        return journal.read(self.journal)


def admit(folder: Path, trusted: Iterable[str], require: Trust) -> Shard:
    """The shard in a folder, once it is whole, signed, and trusted as far as is required. Its
    tables are not read: they are derived anew.

    Raises `UsageError` when there is no run, or one that is no shard, and `VerificationFailed` when
    it is not what was signed.
    """
    run = RunFolder.existing(folder)
    least = require if require.reaches(Trust.EPHEMERAL) else Trust.EPHEMERAL
    contents = Contents()

    def seen(line: Line) -> None:
        # Of the many entries only that of the canary is looked at here.
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
            f"{folder} is no shard: its plan is {plan.shard} of a whole that it does not name",
            "give runs that `nsabench all --shard i/n` of this version has made.",
        )
    return Shard(
        folder=folder,
        info=MergedShard(
            run_id=plan.run_id,
            shard=plan.shard,
            plan_sha256=report.digests["plan.yaml"],
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

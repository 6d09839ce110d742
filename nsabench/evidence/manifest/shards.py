"""Check that a merged run is made of the shards that it names, as each host measured and signed it.

The folder of a merged run holds the plan, the environment and the manifest of each shard. Its
journal holds the journal of each shard, to the byte.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from nsabench.errors import UsageError, VerificationFailed
from nsabench.evidence.manifest import files
from nsabench.evidence.manifest.statement import Predicate, Statement, read_envelope, signed
from nsabench.execution.joined import Segment
from nsabench.model.plan import ImplementationInfo, MergedShard, Plan
from nsabench.processes import each

FOLDER = "shards"
KEPT = ("plan.json", "environment.json", "manifest.dsse.json")
# Fields of a plan that are the same in a shard and in the merged run.
_SHARED = (
    *("device", "margin", "sources", "kernels_sha256", "ops_sha256", "where", "nsabench"),
    *("sandboxed", "whole"),
)


def place(shard: MergedShard) -> str:
    """The folder of a shard, by its path in the folder of the merged run."""
    return f"{FOLDER}/{shard.run_id}"


def check(
    folder: Path,
    plan: Plan,
    segments: Mapping[str, Segment],
    predicate: Predicate | None,
    known: Mapping[str, Plan],
) -> None:
    """Raise `VerificationFailed` if a shard was altered, or a part of it is missing.

    segments: parts of the journal, by run id. known: plans that need not be read again, by the
    sha256 of the file.
    """
    runs = [shard.run_id for shard in plan.shards]
    if len(set(runs)) != len(runs) or set(runs) != segments.keys():
        raise VerificationFailed("journal.jsonl does not hold each of the shards once")
    if predicate is not None:
        stated = {shard.run_id: shard.manifest_sha256 for shard in plan.shards}
        if predicate.plan.shards != stated:
            raise VerificationFailed("what was signed: the shards are not those of plan.json")
    implementations = {(i.op, i.name): i for i in plan.implementations}

    def check_one(given: tuple[MergedShard, Plan]) -> None:
        shard, part = given
        try:
            _check_files(folder, shard, segments[shard.run_id])
            path = folder / place(shard) / "plan.json"
            own = known.get(shard.plan_sha256) or Plan.read(path)
            _check_plan(own, shard, part, implementations)
        except (UsageError, VerificationFailed) as error:
            raise VerificationFailed(f"{shard}: {error}") from None

    for _ in each(check_one, list(plan.parts())):
        pass


def _check_files(folder: Path, shard: MergedShard, segment: Segment) -> None:
    """Check that the files of a shard are what its host signed, and that it measured them."""
    if files.sha256(folder, f"{place(shard)}/manifest.dsse.json") != shard.manifest_sha256:
        raise VerificationFailed("its manifest is not the one that was merged")
    statement, keyid = signed(read_envelope(folder / place(shard)))
    if statement.predicate.run_id != shard.run_id or keyid != shard.keyid:
        raise VerificationFailed("its manifest is of another run, or by another key")
    _same(statement, "journal.jsonl", segment.sha256, shard.journal_sha256)
    for name, stated in (
        ("plan.json", shard.plan_sha256),
        ("environment.json", shard.environment_sha256),
    ):
        _same(statement, name, files.sha256(folder, f"{place(shard)}/{name}"), stated)
    if segment.origin is None or segment.origin.keyid != keyid:
        raise VerificationFailed("who signed it is not who measured it")
    if segment.environments != {shard.environment_sha256}:
        raise VerificationFailed("its environment.json is not what its journal says")


def _check_plan(
    own: Plan,
    shard: MergedShard,
    part: Plan,
    implementations: Mapping[tuple[str, str], ImplementationInfo],
) -> None:
    """Check that the plan of a shard is its part of the merged plan."""
    if own.run_id != shard.run_id or own.shard != shard.shard:
        raise VerificationFailed("its plan is of another shard")
    cases = [planned.model_copy(update={"shard": 0}) for planned in part.cases]
    if cases != own.cases or part.canary != own.canary:
        raise VerificationFailed("its cases are not those of its plan")
    if any(implementations.get((i.op, i.name)) != i for i in own.implementations):
        raise VerificationFailed("its implementations are not those of its plan")
    for name in _SHARED:
        if getattr(part, name) != getattr(own, name):
            raise VerificationFailed(f"{name} is not that of its plan")
    if [(m.name, m.sha256) for m in part.matrices] != [(m.name, m.sha256) for m in own.matrices]:
        raise VerificationFailed("its matrices are not those of its plan")


def _same(statement: Statement, name: str, there: str, stated: str) -> None:
    if not there == stated == statement.digests.get(name):
        raise VerificationFailed(f"its {name} is not what was signed")

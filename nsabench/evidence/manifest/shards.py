"""Is a merged run made of the shards that it names, each as its host measured and signed it?

The folder of such a run holds of each shard its plan, its environment and its manifest; the journal
of the run holds the shard's own journal, to the byte.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from nsabench.errors import UsageError, VerificationFailed
from nsabench.evidence.manifest import files
from nsabench.evidence.manifest.statement import Predicate, Statement, read_envelope, signed
from nsabench.execution.joined import Segment
from nsabench.model.plan import ImplementationInfo, MergedShard, Plan, PlannedCase
from nsabench.processes import each

FOLDER = "shards"
KEPT = ("plan.json", "environment.json", "manifest.dsse.json")


def place(shard: MergedShard) -> str:
    """The folder of a shard in that of the run."""
    return f"{FOLDER}/{shard.run_id}"


def check(
    folder: Path,
    plan: Plan,
    segments: Mapping[str, Segment],
    predicate: Predicate | None,
    known: Mapping[str, Plan],
) -> None:
    """Raises `VerificationFailed` when one of the shards is not what it was, or not all of it is
    there. known: plans that need not be read, by the sha256 of their file."""
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
            _check(folder, shard, part, implementations, segments[shard.run_id], known)
        except VerificationFailed as error:
            raise VerificationFailed(f"{shard}: {error}") from None

    for _ in each(check_one, list(plan.parts())):
        pass


def _check(
    folder: Path,
    shard: MergedShard,
    part: Plan,
    implementations: Mapping[tuple[str, str], ImplementationInfo],
    segment: Segment,
    known: Mapping[str, Plan],
) -> None:
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
    try:
        own = known.get(shard.plan_sha256) or Plan.read(folder / place(shard) / "plan.json")
    except UsageError as error:
        raise VerificationFailed(str(error)) from None
    if own.run_id != shard.run_id or own.shard != shard.shard:
        raise VerificationFailed("its plan is of another shard")
    if list(map(_bare, part.cases)) != own.cases or part.canary != own.canary:
        raise VerificationFailed("its cases are not those of its plan")
    if any(implementations.get((i.op, i.name)) != i for i in own.implementations):
        raise VerificationFailed("its implementations are not those of its plan")
    of_both = ("device", "margin", "sources", "kernels_sha256", "ops_sha256", "where")
    for name in (*of_both, "nsabench", "sandboxed", "whole"):
        if getattr(part, name) != getattr(own, name):
            raise VerificationFailed(f"{name} is not that of its plan")
    if [(m.name, m.sha256) for m in part.matrices] != [(m.name, m.sha256) for m in own.matrices]:
        raise VerificationFailed("its matrices are not those of its plan")


def _bare(planned: PlannedCase) -> PlannedCase:
    """The case as its shard planned it."""
    return planned.model_copy(update={"shard": 0})


def _same(statement: Statement, name: str, there: str, stated: str) -> None:
    if not there == stated == statement.digests.get(name):
        raise VerificationFailed(f"its {name} is not what was signed")

"""Check the log of a run. A merged run keeps the log, plan and manifest of each shard."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from nsabench.errors import UsageError, VerificationFailed
from nsabench.evidence.manifest import files
from nsabench.evidence.manifest.statement import (
    ShardSigned,
    read_envelope,
    require_same,
    verify_envelope,
)
from nsabench.model.description import Described
from nsabench.model.log import Log
from nsabench.model.plan import ImplementationInfo, Plan, PlannedCase
from nsabench.model.vocabulary import Purpose
from nsabench.running import log
from nsabench.running.folder import KEPT, MANIFEST, RunFolder
from nsabench.running.log import LogOrigin
from nsabench.verdicts.attempts import states_of
from nsabench.verdicts.results import refuse_other_log

# Fields in which the plans of shards may differ. `kernels` and `ops` are paths on each host.
_OWN = {"shard", "cases", "implementations", "kernels", "ops"}


@dataclass(frozen=True)
class Logged:
    """The content of a log. A merged run has the machine and signer of its first shard."""

    cases: int
    described: Described
    origin: LogOrigin
    shards: tuple[ShardSigned, ...] = ()  # the signer of each shard


def check_log(folder: Path, plan: Plan) -> Logged:
    found, origin = read_log(folder, plan)
    try:
        states = states_of(plan, found, Purpose.MAIN)
    except UsageError as error:
        raise VerificationFailed(f"log.jsonl: {error}") from None
    for case_id in plan.by_id.keys() - states.keys():
        raise VerificationFailed(f"log.jsonl: case {case_id} is missing")
    digest = files.sha256(folder, "environment.json")
    for session in found.sessions:
        stated = session.environment_sha256
        require_same("the sha256 of environment.json", digest, stated, "the log")
    return Logged(len(states), found.sessions[0].described, origin)


def read_log(folder: Path, plan: Plan) -> tuple[Log, LogOrigin]:
    try:
        found, origin = log.examine(folder / "log.jsonl")
        refuse_other_log(plan, found)
        return found, origin
    except (UsageError, VerificationFailed) as error:
        raise VerificationFailed(f"log.jsonl: {error}") from None


def check_shards(folder: Path, plan: Plan) -> Logged:
    """Check that each shard is as its host signed it, and return the content of the logs."""
    if len(set(plan.shards)) != len(plan.shards):
        raise VerificationFailed("plan.json names a shard twice")
    shards = [_check_shard(folder, run_id) for run_id in plan.shards]
    try:
        differing = plan.differences(
            plan_together([own for own, _ in shards], plan.run_id, plan.created)
        )
    except UsageError as error:
        raise VerificationFailed(f"the shards: {error}") from None
    if differing:
        what = ", ".join(differing)
        raise VerificationFailed(f"plan.json differs from the plans of its shards in: {what}")
    first = files.sha256(RunFolder(folder).shard(plan.shards[0]).path, "environment.json")
    digest = files.sha256(folder, "environment.json")
    require_same("the sha256 of environment.json", digest, first, "the first shard")
    return replace(
        shards[0][1],
        cases=sum(found.cases for _, found in shards),
        shards=tuple(signature for _, found in shards for signature in found.shards),
    )


def _check_shard(folder: Path, run_id: str) -> tuple[Plan, Logged]:
    shard = RunFolder(folder).shard(run_id).path
    try:
        statement, keyid = verify_envelope(read_envelope(shard))
        for name in set(KEPT) - {MANIFEST}:
            if files.sha256(shard, name) != statement.digests.get(name):
                raise VerificationFailed(f"{name} was changed after the signature")
        own = Plan.read(shard / "plan.json")
        if not own.run_id == run_id == statement.predicate.run_id:
            raise VerificationFailed("plan.json or the manifest is of another run")
        found = check_log(shard, own)
        if found.origin.keyid != keyid:
            raise VerificationFailed("its manifest and its log are signed with different keys")
    except (UsageError, VerificationFailed) as error:
        raise VerificationFailed(f"the shard {run_id}: {error}") from None
    return own, replace(found, shards=(statement.predicate.as_shard,))


def plan_together(shards: Sequence[Plan], run_id: str, created: datetime) -> Plan:
    """Return the plan of a merged run. Raises `UsageError` unless its shards make up one plan."""
    first = shards[0]
    cases: dict[str, PlannedCase] = {}
    implementations: dict[tuple[str, str], ImplementationInfo] = {}
    for number, own in enumerate(shards, 1):
        other = set(own.differences(first)) - _OWN
        other |= {
            f"implementation {i.name}"
            for i in own.implementations
            if implementations.setdefault((i.op, i.name), i) != i
        }
        other |= {f"case {planned.id}" for planned in own.cases if planned.id in cases}
        if other:
            names = ", ".join(sorted(other)[:5])
            raise UsageError(
                f"shard {own.run_id} does not fit the other shards: these differ: {names}",
                "give the shards of one plan; `nsabench compare` and `nsabench threshold` take "
                "runs of several plans.",
            )
        cases |= {p.id: p.model_copy(update={"shard": number}) for p in own.cases}
    ids = first.whole.split()
    if cases.keys() != set(ids):
        raise UsageError(f"case {sorted(cases.keys() ^ set(ids))[0]} is missing")
    changed = {
        "run_id": run_id,
        "created": created,
        "shard": "1/1",
        "shards": tuple(own.run_id for own in shards),
        "implementations": list(implementations.values()),
        "cases": [cases[case_id] for case_id in ids],
    }
    return Plan.model_construct(**{**dict(first), **changed})

"""Check the log of a run; of a merged run the log, manifest and plan of each shard that it keeps.

A merged run keeps each shard as its host measured and signed it, without the tables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nsabench.errors import UsageError, VerificationFailed
from nsabench.evidence.manifest import files
from nsabench.evidence.manifest.same import same, same_members
from nsabench.evidence.manifest.statement import MANIFEST, read_envelope, signed
from nsabench.model.description import Described
from nsabench.model.log import Log
from nsabench.model.plan import Plan
from nsabench.model.vocabulary import Purpose
from nsabench.processes import each
from nsabench.running import log
from nsabench.running.folder import RunFolder
from nsabench.running.seals import Origin
from nsabench.verdicts.attempts import states_of
from nsabench.verdicts.canary import Canary, canary_of
from nsabench.verdicts.results import belongs

KEPT = ("plan.json", "log.jsonl", "environment.json", MANIFEST)  # of a shard in a merged run
# Fields of a plan that are the same in a shard and in the merged run.
_SHARED = (
    *("device", "margin", "sources", "kernels_sha256", "ops_sha256", "where", "nsabench"),
    *("sandboxed", "whole", "canary"),
)


@dataclass(frozen=True)
class Logged:
    """What the logs of a run hold.

    cases: their number. samples: how many the main pass took. described: the machine, by the first
    session. origin: the signer of the log; the first shard's in a merged run.
    """

    cases: int
    samples: int
    described: Described
    origin: Origin
    canary: Canary

    def __str__(self) -> str:
        return f"{self.cases} cases"


def check_log(folder: Path, plan: Plan) -> Logged:
    """Return what the log of a run holds, once it is of this plan and measured all of it."""
    found, origin = read_log(folder, plan)
    try:
        states, canary = states_of(plan, found, Purpose.MAIN), canary_of(plan, found)
    except UsageError as error:
        raise VerificationFailed(f"log.jsonl: {error}") from None
    same_members("log.jsonl: case", Counter(list(states)), Counter(case.id for case in plan.cases))
    observations = [observation for state in states.values() for observation in state.observations]
    digest = files.sha256(folder, "environment.json")
    for session in found.sessions:
        stated = session.environment_sha256
        same("environment.json: its sha256, by the log,", digest, stated)
    return Logged(
        cases=len(states),
        samples=sum(len(o.samples.time_ms) + len(o.bursts.time_ms) for o in observations),
        described=found.sessions[0].described,
        origin=origin,
        canary=canary,
    )


def read_log(folder: Path, plan: Plan) -> tuple[Log, Origin]:
    """Return the log of a run, which may be interrupted, and its signer.

    Raises `VerificationFailed` if a line is not what was measured, or is of another plan.
    """
    try:
        found, origin = log.examine(folder / "log.jsonl")
        belongs(plan, found)
        return found, origin
    except (UsageError, VerificationFailed) as error:
        raise VerificationFailed(f"log.jsonl: {error}") from None


def check_shards(folder: Path, plan: Plan) -> Logged:
    """Return what the logs of a merged run hold, once each shard is as its host signed it."""
    if len(set(plan.shards)) != len(plan.shards):
        raise VerificationFailed("plan.json names a shard twice")
    shards = list(each(lambda run_id: _check_shard(folder, run_id), plan.shards))
    _check_plans(plan, [own for own, _ in shards])
    _check_cases(plan, [own for own, _ in shards])
    logged = [found for _, found in shards]
    first = files.sha256(RunFolder(folder).shard(plan.shards[0]).path, "environment.json")
    same("environment.json: its sha256", files.sha256(folder, "environment.json"), first)
    return Logged(
        cases=sum(found.cases for found in logged),
        samples=sum(found.samples for found in logged),
        described=logged[0].described,
        origin=logged[0].origin,
        canary=logged[0].canary,
    )


def _check_shard(folder: Path, run_id: str) -> tuple[Plan, Logged]:
    """Check the files that are kept of a shard: its host signed them, and it measured them."""
    shard = RunFolder(folder).shard(run_id).path
    try:
        statement, keyid = signed(read_envelope(shard))
        for name in set(KEPT) - {MANIFEST}:
            if files.sha256(shard, name) != statement.digests.get(name):
                raise VerificationFailed(f"its {name} is not what was signed")
        own = Plan.read(shard / "plan.json")
        if not own.run_id == run_id == statement.predicate.run_id:
            raise VerificationFailed("its plan or its manifest is of another run")
        found = check_log(shard, own)
        if found.origin.keyid != keyid:
            raise VerificationFailed("the key that signed it is not the key that measured it")
    except (UsageError, VerificationFailed) as error:
        raise VerificationFailed(f"the shard {run_id}: {error}") from None
    return own.without_content(), found


def _check_plans(plan: Plan, shards: Sequence[Plan]) -> None:
    """Check that the plan of a merged run is that of its shards together."""
    implementations = {(i.op, i.name): i for i in plan.implementations}
    for number, own in enumerate(shards, 1):
        cases = [p.model_copy(update={"shard": 0}) for p in plan.cases if p.shard == number]
        wrong = [name for name in _SHARED if getattr(plan, name) != getattr(own, name)]
        if cases != own.cases:
            wrong.append("cases")
        if any(implementations.get((i.op, i.name)) != i for i in own.implementations):
            wrong.append("implementations")
        if {(m.name, m.sha256) for m in plan.matrices} != {
            (m.name, m.sha256) for m in own.matrices
        }:
            wrong.append("matrices")
        if wrong:
            raise VerificationFailed(
                f"the shard {own.run_id}: its {' and '.join(wrong)} are not those of plan.json"
            )


def _check_cases(plan: Plan, shards: Sequence[Plan]) -> None:
    """Check that the shards are all of the plan that they are of, and that none else is planned."""
    measured = Counter[object](planned.id for own in shards for planned in own.cases)
    same_members("the shards: case", measured, Counter(plan.whole.split()))
    same_members("plan.json: case", Counter(planned.id for planned in plan.cases), measured)

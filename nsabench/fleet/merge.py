"""Merge shards into one run: verify, compare, join, derive and sign.

The merged run keeps log, plan, environment and manifest of each shard unchanged, so the signatures
of the hosts that measured stay valid.
"""

import re
import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex

from nsabench import conclusion, ops
from nsabench.errors import UsageError, VerificationFailed
from nsabench.evidence.manifest import MANIFEST, files, signed_around, verify
from nsabench.evidence.manifest.logs import plan_together
from nsabench.evidence.manifest.statement import Trust
from nsabench.files import refuse_filled, writing
from nsabench.machine.environment.model import Environment
from nsabench.model.description import Described
from nsabench.model.plan import Plan
from nsabench.running import run as runs
from nsabench.running.folder import KEPT, RunFolder
from nsabench.running.run import Finished
from nsabench.signing import Signer
from nsabench.verdicts.tables import write_tables


@dataclass(frozen=True)
class Shard:
    folder: Path
    index: int
    count: int
    plan: Plan
    machine: dict[str, str]  # versions and devices that all shards must share
    digests: dict[str, str]  # the sha256 of its files


def merge(
    folders: Sequence[Path],
    out: Path,
    signer: Signer,
    *,
    trusted: Iterable[str] = (),
    require: Trust = Trust.EPHEMERAL,
) -> tuple[Finished, str]:
    """Merge shards into a new run `out`, which appears complete or not at all.

    Return the run, and a sentence about its signature. Raise `UsageError` unless `folders` hold all
    shards of one plan, measured with the same GPU model and versions.
    """
    refuse_filled(out)
    signed = signed_around(out)
    if signed is not None:
        raise UsageError(f"{out} is inside {signed}, which is signed", "give --out another folder.")
    ops.refuse_other(Plan.read(RunFolder.existing(folders[0]).plan))
    keyids = frozenset(trusted)
    shards = [_admit(folder, keyids, require) for folder in folders]
    shards.sort(key=lambda shard: shard.index)
    _refuse_gaps(shards)
    for shard in shards[1:]:
        _refuse_other_machine(shards[0], shard)
    now = datetime.now(UTC).replace(microsecond=0)
    run_id = f"{now:%Y%m%dT%H%M%SZ}-{token_hex(3)}"
    plan = plan_together([shard.plan for shard in shards], run_id, now)
    making = out.with_name(f".{out.name}.{plan.run_id}")
    with writing(out.parent, "merge again"):
        making.mkdir(parents=True)
        try:
            finished, sentence = _write_run(RunFolder(making), shards, plan, signer)
            making.replace(out)
        except BaseException:
            shutil.rmtree(making)
            raise
    return replace(finished, folder=RunFolder(out)), sentence


def _admit(folder: Path, trusted: Iterable[str], require: Trust) -> Shard:
    """Verify the shard in a folder, except for its tables, which a merge derives again."""
    run = RunFolder.existing(folder)
    least = require if require.reaches(Trust.EPHEMERAL) else Trust.EPHEMERAL
    report = verify(folder, trusted=trusted, require=least, tables=False)
    report.raise_if_broken()
    plan, logged = report.plan, report.logged
    assert plan is not None and logged is not None
    if plan.shards:
        raise UsageError(f"{folder} is a merged run", "give the shards that it was merged from.")
    named = re.fullmatch(r"(\d+)/(\d+)", plan.shard)
    if named is None or not plan.whole:
        raise UsageError(
            f"{folder} is not a shard of a known plan (shard: {plan.shard or 'none'})",
            "give runs that `nsabench all --shard i/n` of this version has made.",
        )
    return Shard(
        folder=folder,
        index=int(named[1]),
        count=int(named[2]),
        plan=plan,
        machine=_describe_machine(logged.described, Environment.read(run.environment)),
        digests={**report.digests, MANIFEST: files.sha256(folder, MANIFEST)},
    )


def _describe_machine(described: Described, environment: Environment) -> dict[str, str]:
    software, device = described.software, described.device
    return {
        "GPU model": device.name or "",
        "CPU's instructions": device.capability or "",
        "driver": environment.driver.version or "",
        "torch": software.torch or "",
        "Triton": software.triton or "",
        "CUDA": software.torch_cuda or "",
        "Python": environment.software.python,
    }


def _refuse_other_machine(first: Shard, other: Shard) -> None:
    for what, value in other.machine.items():
        expected = first.machine[what]
        if value != expected:
            raise UsageError(
                f"{other.folder} and {first.folder} are not parts of one run: different {what}, "
                f"{value or 'none'} and {expected or 'none'}",
                "merge the shards that are alike, and compare the merged runs with `nsabench "
                "compare`.",
            )


def _refuse_gaps(shards: Sequence[Shard]) -> None:
    count = shards[0].count
    given = Counter(shard.index for shard in shards)
    for shard in shards:
        if shard.count != count:
            raise UsageError(
                f"{shard.folder} is shard {shard.plan.shard}, but {shards[0].folder} is one of "
                f"{count} shards",
                "give the shards of one plan.",
            )
        if given[shard.index] > 1:
            both = " and ".join(str(s.folder) for s in shards if s.index == shard.index)
            raise UsageError(f"shard {shard.plan.shard} is there twice: {both}", "give one only.")
    missing = [f"{index}/{count}" for index in range(1, count + 1) if index not in given]
    if missing:
        raise UsageError(
            f"{len(missing)} of {count} shards are missing: {', '.join(missing[:5])}",
            "name their folders also, or measure them with `nsabench all --shard i/n`.",
        )


def _write_run(
    run: RunFolder, shards: Sequence[Shard], plan: Plan, signer: Signer
) -> tuple[Finished, str]:
    plan.write(run.plan)
    run.logs.mkdir()
    for shard in shards:
        _copy_files(run, shard)
    shutil.copyfile(shards[0].folder / "environment.json", run.environment)
    logs = [part.log for part in run.parts()]
    finished = replace(
        runs.read(run.path),
        signer=signer,
        wall_s=sum(log.wall_s for log in logs),
        measuring_s=sum(log.measuring_s for log in logs),
    )
    write_tables(finished.results, plan.run_id, run.path)
    return finished, conclusion.conclude(finished, signer)


def _copy_files(run: RunFolder, shard: Shard) -> None:
    place = run.shard(shard.plan.run_id).path
    place.mkdir(parents=True)
    for name in KEPT:
        shutil.copyfile(shard.folder / name, place / name, follow_symlinks=False)
        if files.sha256(place, name) != shard.digests[name]:
            raise VerificationFailed(
                f"{shard.folder / name} changed while it was merged",
                "stop the process that writes to it, and merge again.",
            )
    own = {planned.id for planned in shard.plan.cases}
    for name in shard.digests:
        if name.startswith("logs/") and Path(name).name.partition(".")[0] in own:
            shutil.copyfile(shard.folder / name, run.path / name, follow_symlinks=False)

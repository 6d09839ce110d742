"""Merge shards into one run: verify, compare, join, derive and sign.

The merged run keeps log, plan, environment and manifest of each shard unchanged, so the signature
of each measuring host still counts.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from secrets import token_hex

from nsabench import conclusion, ops
from nsabench.errors import UsageError, VerificationFailed
from nsabench.evidence.manifest import signed_around
from nsabench.evidence.manifest.logs import plan_together
from nsabench.evidence.manifest.statement import Trust
from nsabench.files import refuse_filled, writing
from nsabench.fleet.shard import Shard, admit, refuse_gaps, refuse_others
from nsabench.model.plan import Plan
from nsabench.output.report import Facts
from nsabench.processes import parallel_map
from nsabench.running.folder import KEPT, RunFolder
from nsabench.running.run import Finished
from nsabench.signing import Signer
from nsabench.verdicts import merged


@dataclass(frozen=True)
class Merged:
    """A merged run. outlying: why a shard's times decide nothing. signed: one sentence."""

    finished: Finished
    outlying: dict[str, str]
    signed: str


def merge(
    folders: Sequence[Path],
    out: Path,
    signer: Signer,
    *,
    trusted: Iterable[str] = (),
    require: Trust = Trust.EPHEMERAL,
    note: Callable[[str], None] = lambda _: None,
) -> Merged:
    """Merge shards into a new run `out`, which appears complete or not at all.

    Raises `UsageError` unless the shards are one whole plan, measured alike.
    Raises `VerificationFailed` if a shard was altered or is trusted less than required.
    """
    refuse_filled(out)
    signed = signed_around(out)
    if signed is not None:
        raise UsageError(f"{out} is inside {signed}, which is signed", "give --out another folder.")
    shards = _admit(folders, frozenset(trusted), require, note)
    refuse_gaps(shards)
    now = datetime.now(UTC).replace(microsecond=0)
    run_id = f"{now:%Y%m%dT%H%M%SZ}-{token_hex(3)}"
    plan = plan_together([shard.plan for shard in shards], run_id, now)
    making = out.with_name(f".{out.name}.{plan.run_id}")
    with writing(out.parent, "merge again"):
        making.mkdir(parents=True)
        try:
            made = _write_run(making, shards, plan, signer, note)
            making.replace(out)
        except BaseException:
            shutil.rmtree(making)
            raise
    return replace(made, finished=replace(made.finished, folder=RunFolder(out)))


def _admit(
    folders: Sequence[Path], trusted: frozenset[str], require: Trust, note: Callable[[str], None]
) -> list[Shard]:
    ops.refuse_other(Plan.read(RunFolder.existing(folders[0]).plan))
    shards: list[Shard] = []
    for shard in parallel_map(partial(admit, trusted=trusted, require=require), folders):
        if shards:
            refuse_others(shards[0], shard)
            shard = shard.sharing(shards[0])
        shards.append(shard)
        if len(shards) % 100 == 0:
            note(f"verified {len(shards)} of {len(folders)} shards")
    return sorted(shards, key=lambda shard: shard.index)


def _write_run(
    folder: Path, shards: Sequence[Shard], plan: Plan, signer: Signer, note: Callable[[str], None]
) -> Merged:
    run = RunFolder(folder)
    plan.write(run.plan)
    run.logs.mkdir()
    for shard in shards:
        _copy_files(run, shard)
    shutil.copyfile(shards[0].folder / "environment.json", run.environment)
    parts = run.parts()
    outlying = merged.outlying(parts)
    for name, why in outlying.items():
        note(f"{name} differs from the others, so its verdicts are inconclusive: {why}")
    facts = Facts.read(folder, signer=signer)
    conclusion.derive(facts, folder)
    lacking = conclusion.report(facts)
    signed = conclusion.sign(run, signer)
    wall_s = sum(part.log.wall_s for part in parts)
    measuring_s = sum(part.log.measuring_s for part in parts)
    finished = Finished(run, plan, facts.results, wall_s, measuring_s, signer)
    return Merged(finished, outlying, f"{signed}\n{lacking}" if lacking else signed)


def _copy_files(run: RunFolder, shard: Shard) -> None:
    place = run.shard(shard.plan.run_id).path
    place.mkdir(parents=True)
    for name in KEPT:
        content = (shard.folder / name).read_bytes()
        _refuse_changed(shard, name, content, shard.digests[name])
        (place / name).write_bytes(content)
    own = {planned.id for planned in shard.cases}
    for name in shard.digests:
        if name.startswith("logs/") and Path(name).name.partition(".")[0] in own:
            shutil.copyfile(shard.folder / name, run.path / name, follow_symlinks=False)


def _refuse_changed(shard: Shard, name: str, content: bytes, expected: str) -> None:
    """Raise `VerificationFailed` if a file has changed since it was verified."""
    if hashlib.sha256(content).hexdigest() != expected:
        raise VerificationFailed(
            f"{shard.folder / name} was changed while it was merged",
            "merge shards that nothing writes to.",
        )

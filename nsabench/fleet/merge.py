"""Merge shards into one run: verify, compare, join, derive and sign.

The merged run keeps log, plan, environment and manifest of each shard unchanged, so the signature
of each measuring host still counts.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from secrets import token_hex

import pyarrow as pa

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
from nsabench.verdicts import break_even, canary, merged, threshold
from nsabench.verdicts.failures import failures
from nsabench.verdicts.parquet import Tables, tables_of
from nsabench.verdicts.results import Results
from nsabench.verdicts.threshold import decide_all
from nsabench.verdicts.threshold.evidence import Evidence, together
from nsabench.verdicts.threshold.evidence import of_records as of_evidence


@dataclass
class Merged:
    """A merged run.

    finished: None if the run has too many records for a page.
    outlying: the reason why a shard's times decide nothing, by shard.
    failed: one line a failure. signed: one sentence.
    """

    plan: Plan
    finished: Finished | None
    records: int = 0
    outlying: dict[str, str] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    signed: str = ""


@dataclass(frozen=True)
class _Derived:
    """The results derived from a shard; they are None if the run has no page. Times in seconds."""

    results: Results | None
    tables: tuple[pa.Table, pa.Table, pa.Table]
    failed: list[str]
    evidence: Evidence
    wall_s: float
    measuring_s: float


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
    if made.finished is not None:
        made.finished = replace(made.finished, folder=RunFolder(out))
    return made


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
    outlying = canary.outlying({merged.name_of(s.plan): s.logged.canary for s in shards})
    for name, why in outlying.items():
        note(f"{name} differs from the others, so its verdicts are inconclusive: {why}")
    made = Merged(plan, None, outlying=outlying)
    parts: list[Results] = []
    evidence: list[Evidence] = []
    sizes = {size for planned in plan.cases for size in planned.case.shape}
    wall_s = measuring_s = 0.0
    for shard in shards:
        _copy_files(run, shard)
    given = [(run.shard(s.plan.run_id), outlying.get(merged.name_of(s.plan), "")) for s in shards]
    shown = merged.has_page(plan)
    ops.count(planned.case for planned in plan.cases)  # once: the processes below are forked
    derive = partial(_derive, run_id=plan.run_id, sizes=sizes, shown=shown)
    with Tables(folder) as tables:
        for own in parallel_map(derive, given, worth_it=2):
            tables.add(own.tables)
            made.failed += own.failed
            made.records += own.tables[0].num_rows
            wall_s += own.wall_s
            measuring_s += own.measuring_s
            evidence.append(own.evidence)
            if own.results is not None:
                parts.append(own.results)
    shutil.copyfile(shards[0].folder / "environment.json", run.environment)
    decisions = decide_all([together(evidence)], plan.margin)
    lacking = ""
    if shown:
        results = merged.together(parts)
        made.finished = Finished(run, plan, results, wall_s, measuring_s, signer)
        threshold.write(decisions, run.thresholds, break_even.decide(results.records))
        lacking = conclusion.report(Facts.read(folder, results, signer))
    else:
        threshold.write(decisions, run.thresholds)
        lacking = (
            f"there is no page: {made.records} records are more than the "
            f"{merged.MOST_ON_A_PAGE} that one shows"
        )
    signed = conclusion.sign(run, signer)
    made.signed = f"{signed}\n{lacking}" if lacking else signed
    return made


def _derive(
    given: tuple[RunFolder, str], run_id: str, sizes: Iterable[str], shown: bool
) -> _Derived:
    """Derive what follows from a shard of the merged run, in a process of its own."""
    folder, outlying = given
    [part] = folder.parts()
    results = merged.of_shard(run_id, part, outlying)
    return _Derived(
        results=results if shown else None,
        tables=tables_of(results, run_id, sizes),
        failed=failures(results),
        evidence=of_evidence(results.records, part.plan).without_records(),
        wall_s=part.log.wall_s,
        measuring_s=part.log.measuring_s,
    )


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

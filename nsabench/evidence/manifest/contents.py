"""Do the files of a run agree with each other and with what was signed about them?

Hashes say that nothing changed since the signature; these checks say that what was signed is a
whole run. Each takes a folder and the signed predicate, and raises `VerificationFailed`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from nsabench import limits
from nsabench.assessment.tables import (
    BURSTS,
    RECORDS,
    SAMPLES,
    batches,
    check_table,
    misfit,
    values,
)
from nsabench.assessment.verdict import Key
from nsabench.errors import UsageError, VerificationFailed
from nsabench.evidence.manifest import files, shards, summary, whole_records
from nsabench.evidence.manifest.journaled import Journaled
from nsabench.evidence.manifest.same import same, same_members
from nsabench.evidence.manifest.seal import brief_of, brief_plan
from nsabench.evidence.manifest.statement import Predicate
from nsabench.evidence.manifest.summary import Stated
from nsabench.machine.environment.model import Environment
from nsabench.machine.environment.pairs import belongs
from nsabench.model.plan import Plan
from nsabench.model.record import Column
from nsabench.reading import OutOfBounds

RECORD_COLUMNS = ["run_id", "case_id", "implementation", "status", "reason", "n_samples", "speedup"]
SAMPLE_COLUMNS = ["run_id", "case_id", "implementation", "time_ms"]
BURST_COLUMNS = [*SAMPLE_COLUMNS, "calls"]


def read_plan(folder: Path, predicate: Predicate | None) -> Plan:
    """The plan, its cases hashed to their ids again and compared with the predicate."""
    try:
        plan = Plan.read(folder / "plan.json")
    except UsageError as error:
        raise VerificationFailed(f"plan.json: {error}") from None
    if predicate is not None:
        same("plan.json: run_id", plan.run_id, predicate.run_id)
        same("plan.json", brief_plan(plan), predicate.plan)
    return plan


def check_environment(folder: Path, predicate: Predicate | None) -> Environment:
    """The environment, once what was signed of it in brief is what it says."""
    try:
        environment = Environment.read(folder / "environment.json")
    except OSError as error:
        raise VerificationFailed(f"environment.json cannot be read: {error.strerror}") from None
    except OutOfBounds as error:
        raise VerificationFailed(f"environment.json {error}") from None
    if predicate is not None:
        there = brief_of(environment)
        for name, stated in predicate.environment:
            same(f"environment.json: {name}", getattr(there, name), stated)
    return environment


def said_of_environment(environment: Environment) -> str:
    """`complete; unpaired: this torch belongs with triton 3.7.1`."""
    brief = brief_of(environment)
    other = belongs(brief.torch, brief.triton)
    said = "complete" if environment.complete else "not complete"
    return f"{said}; {other}" if other else said


def check_origin(
    folder: Path,
    plan: Plan,
    journaled: Journaled,
    predicate: Predicate | None,
    known: Mapping[str, Plan],
) -> None:
    """Check that the key that signed is the one that measured, by the journal, and that the journal
    names environment.json. For a merged run that holds for each shard. known: plans of shards that
    need not be read, by the sha256 of their file."""
    if plan.shards:
        shards.check(folder, plan, journaled.segments, predicate, known)
        digest = files.sha256(folder, "environment.json")
        same("environment.json: its sha256", digest, plan.shards[0].environment_sha256)
        return
    origin = journaled.origin
    if origin is None:
        raise VerificationFailed("journal.jsonl does not say who measured")
    if predicate is not None:
        same("journal.jsonl: the key that vouches for it", origin.keyid, predicate.signer.keyid)
    digest = files.sha256(folder, "environment.json")
    for stated in sorted(journaled.environments):
        same("environment.json: its sha256, by the journal,", stated, digest)


def check_records(
    folder: Path,
    plan: Plan,
    predicate: Predicate | None,
    environment: Environment,
    journaled: Journaled,
) -> dict[Key, int | None]:
    """How many samples each record states, or None where it is not `ok`, once the table holds one
    complete row for every implementation of every case, all of them of the device and the versions
    that were journaled and signed. No more is held of a record: there may be many."""
    planned: Counter[object] = Counter(
        (case.id, name) for case in plan.cases for name in case.implementations
    )
    rows = _count_rows(folder, "records.parquet", limits.RECORDS)
    if predicate is not None:
        same("records.parquet: rows", rows, predicate.records)
    if rows > 2 * planned.total():  # of fewer, the one that is too many is named
        raise VerificationFailed(
            f"records.parquet has {rows} rows, and {planned.total()} records were planned"
        )
    keys: Counter[object] = Counter()
    for part in _parts(folder, "records.parquet", RECORDS, RECORD_COLUMNS):
        for run_id in _texts(part["run_id"]):
            same("records.parquet: run_id", run_id, plan.run_id)
        keys.update(_keys(part))
    same_members("records.parquet: record", keys, planned)
    counts: dict[Key, int | None] = {}
    stated: set[Stated] = set()
    for part in batches(folder / "records.parquet"):
        counts.update(whole_records.counts(part))
        stated.update(map(Stated.of, whole_records.differing(part, Stated._fields)))
        if len(stated) > limits.STATED:
            raise VerificationFailed(
                f"records.parquet states more than {limits.STATED} different things"
            )
    _check_origin_of(stated, plan, environment, journaled)
    if predicate is not None:
        summary.check(stated, predicate)
    return counts


def _keys(part: pa.RecordBatch) -> Iterator[Key]:
    return zip(*(values(part[name]) for name in ("case_id", "implementation")), strict=True)


def _check_origin_of(
    records: Collection[Stated], plan: Plan, environment: Environment, journaled: Journaled
) -> None:
    """They state the device and the versions that the worker described, and so does the
    environment, as far as it does."""
    described = journaled.described
    if described is None:
        raise VerificationFailed("journal.jsonl has no header")
    software, device = described.software, described.device
    expected = {
        "gpu_name": device.name or "",
        "torch": software.torch,
        "triton": software.triton,
        "cuda": software.torch_cuda,
    }
    for record in records:
        for name, value in expected.items():
            same(f"records.parquet: {name}, by the journal,", getattr(record, name), value)
    torch, gpu = environment.software.torch, environment.gpu
    if torch is not None:
        same("environment.json: torch, by the journal,", torch.version, software.torch)
    if plan.device == "cuda" and gpu is not None:
        what = "environment.json: the GPU, by the journal,"
        if not summary.is_device(gpu.name or "", device.name):
            same(what, gpu.name or "", device.name or "")


def check_samples(
    folder: Path,
    plan: Plan,
    predicate: Predicate | None,
    records: Mapping[Key, int | None],
    journaled: int,
) -> int:
    """Their number, once each record that is `ok` has as many finite samples as it says.

    records: how many that is, None where it is not `ok`; journaled: how many the journal holds; the
    table is made of it.
    """
    signed = None if predicate is None else predicate.samples
    counts = _timings(folder, "samples", plan, signed, records, journaled)
    for key, stated in records.items():
        # What a check found implausible keeps its samples and states no count of them.
        if stated is not None:
            same(f"samples.parquet: samples of {key[1]} on {key[0]}", counts[key], stated)
    same("samples.parquet: rows", counts.total(), journaled)
    return counts.total()


def check_bursts(
    folder: Path,
    plan: Plan,
    predicate: Predicate | None,
    records: Mapping[Key, int | None],
    journaled: int,
) -> int:
    """Return the number of bursts, once all are finite, belong to records, and are as many as the
    journal holds."""
    signed = None if predicate is None else predicate.bursts
    counts = _timings(folder, "bursts", plan, signed, records, journaled)
    same("bursts.parquet: rows", counts.total(), journaled)
    return counts.total()


TIMINGS = {"samples": (SAMPLES, SAMPLE_COLUMNS), "bursts": (BURSTS, BURST_COLUMNS)}


def _timings(
    folder: Path,
    table: str,
    plan: Plan,
    signed: int | None,
    records: Mapping[Key, int | None],
    journaled: int,
) -> Counter[Key]:
    """How many timings a table has of each record, once they are finite. signed: of them all."""
    name, (columns, needed) = f"{table}.parquet", TIMINGS[table]
    rows = _count_rows(folder, name, limits.SAMPLES)
    if signed is not None:
        same(f"{name}: rows", rows, signed)
    # Before they are read: a table of very many takes much time and little room.
    if rows > journaled:
        same(f"{name}: rows", rows, journaled)
    counts = Counter[Key]()
    for part in _parts(folder, name, columns, needed):
        for run_id in _texts(part["run_id"]):
            same(f"{name}: run_id", run_id, plan.run_id)
        times = part["time_ms"]
        if times.null_count or not pc.all(pc.is_finite(times), min_count=0).as_py():
            raise VerificationFailed(f"{name} holds a time that is no finite number")
        for key, count in _counts(name, part):
            if key not in records:
                raise VerificationFailed(
                    f"{name} has {table} of {key[1]} on {key[0]}, which is no record"
                )
            counts[key] += count
    return counts


def _count_rows(folder: Path, name: str, most: int) -> int:
    """How many rows a table has, by its metadata."""
    try:
        return check_table(folder / name, most)
    except OutOfBounds as error:
        raise VerificationFailed(f"{name} {error}") from None
    except (OSError, pa.ArrowException) as error:
        raise VerificationFailed(f"{name} cannot be read: {str(error).splitlines()[0]}") from None


def _parts(
    folder: Path, name: str, columns: list[Column], needed: list[str]
) -> Iterator[pa.RecordBatch]:
    """A table part by part, once it has the columns; `_count_rows` has passed it."""
    try:
        wrong = misfit(pq.read_schema(folder / name), columns, needed)
        if wrong:
            raise VerificationFailed(f"{name} {wrong}")
        # All columns, so that a broken page anywhere is found.
        for part in batches(folder / name):
            part.validate(full=True)  # texts are UTF-8
            yield part
    except (OSError, pa.ArrowException) as error:
        raise VerificationFailed(f"{name} cannot be read: {str(error).splitlines()[0]}") from None


def _texts(column: pa.DictionaryArray) -> list[str | None]:
    """The texts that occur in a column."""
    texts = column.dictionary.to_pylist()
    return [None if i is None else texts[i] for i in pc.unique(column.indices).to_pylist()]


def _counts(of: str, part: pa.RecordBatch) -> Iterator[tuple[Key, int]]:
    """How many rows of a part each case and implementation has."""
    cases, names = part["case_id"], part["implementation"]
    table = pa.table({"case": cases.indices, "name": names.indices, "row": part["time_ms"]})
    counted = table.group_by(["case", "name"]).aggregate([("row", "count")])
    case_texts, name_texts = cases.dictionary.to_pylist(), names.dictionary.to_pylist()
    for case, name, count in zip(*(c.to_pylist() for c in counted.columns), strict=True):
        if case is None or name is None:
            raise VerificationFailed(f"{of} holds a time of nothing")
        yield (case_texts[case], name_texts[name]), count

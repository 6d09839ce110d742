"""Check that the tables of a run hold what was planned, logged and signed.

Every function raises `VerificationFailed` and names the table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from nsabench import limits
from nsabench.checks.group import Group
from nsabench.checks.proofs import unproven
from nsabench.errors import VerificationFailed
from nsabench.evidence.manifest.logs import Logged
from nsabench.evidence.manifest.same import same, same_members
from nsabench.evidence.manifest.statement import Predicate
from nsabench.machine.environment.model import Environment
from nsabench.model.plan import Plan
from nsabench.model.record import Comparison, Record, vocabulary
from nsabench.model.vocabulary import Catch, Direction, Mode, Regime, Status
from nsabench.reading import OutOfBounds
from nsabench.verdicts.tables import (
    COMPARISONS,
    RECORDS,
    SAMPLES,
    batches,
    check_table,
    misfit,
    values,
)
from nsabench.verdicts.verdict import Key

TABLES = ("records", "comparisons", "samples")


class Row(NamedTuple):
    """The columns of a record that the checks need."""

    case_id: str
    implementation: str
    status: str
    reason: str | None
    n_samples: int | None
    op: str
    direction: str
    mode: str
    streams: int
    caught_by: str | None
    caught: str | None
    gpu_name: str | None
    torch: str | None
    triton: str | None
    cuda: str | None

    @property
    def key(self) -> Key:
        return self.case_id, self.implementation


_COLUMNS = {"records": RECORDS, "comparisons": COMPARISONS, "samples": SAMPLES}
_NEEDED = {
    "records": ("run_id", *Row._fields),
    "comparisons": tuple(vocabulary(Comparison)),
    "samples": ("run_id", "case_id", "implementation", "regime", "calls", "time_ms"),
}


def check_records(
    folder: Path,
    plan: Plan,
    predicate: Predicate | None,
    environment: Environment,
    logged: Logged,
) -> list[Row]:
    """Return the records, once there is one for each implementation of each case, all of the device
    and the versions that were logged and signed."""
    path = folder / "records.parquet"
    planned: Counter[object] = Counter(
        (case.id, name) for case in plan.cases for name in case.implementations
    )
    rows = _count_rows(path, "records", predicate)
    if rows > 2 * planned.total():  # of fewer, the one that is too many is named
        raise VerificationFailed(
            f"records.parquet has {rows} rows, and {planned.total()} records were planned"
        )
    records = read_rows(path, plan.run_id)
    same_members("records.parquet: record", Counter(r.key for r in records), planned)
    _check_machine(records, plan, environment, logged)
    if predicate is not None:
        _check_summary(records, predicate)
    return records


def check_comparisons(
    folder: Path, plan: Plan, predicate: Predicate | None, records: Sequence[Row]
) -> int:
    """Return the number of comparisons, once each is of a record, there once, and of a record that
    is `ok` if it has a ratio."""
    path = folder / "comparisons.parquet"
    rows = _count_rows(path, "comparisons", predicate)
    statuses = {record.key: record.status for record in records}
    keys: set[tuple[str, ...]] = set()
    for part in _parts(path, "comparisons", plan.run_id):
        _check_words("comparisons", part)
        columns = ("case_id", "implementation", "regime", "reference", "ratio")
        for *key, ratio in zip(*(values(part[name]) for name in columns), strict=True):
            where = f"comparisons.parquet: {key[1]} on {key[0]}"
            status = statuses.get((key[0], key[1]))
            if status is None:
                raise VerificationFailed(f"{where} is no record")
            if ratio is not None and status != Status.OK:
                raise VerificationFailed(f"{where} is {status} and yet has a ratio")
            if tuple(key) in keys:
                raise VerificationFailed(f"{where} is there twice for {key[2]} and {key[3]}")
            keys.add(tuple(key))
    return rows


def check_samples(
    folder: Path, plan: Plan, predicate: Predicate | None, records: Sequence[Row], logged: int
) -> int:
    """Return the number of samples, once all are finite and of records, and as many as the log
    holds. A record that is `ok` says how many it has in its own regime."""
    path = folder / "samples.parquet"
    rows = _count_rows(path, "samples", predicate)
    if rows > logged:  # before they are read, which would take long
        same("samples.parquet: rows", rows, logged)
    keys = {record.key for record in records}
    counts = Counter[tuple[str, str, str]]()
    for part in _parts(path, "samples", plan.run_id):
        times = part["time_ms"]
        if times.null_count or not pc.all(pc.is_finite(times), min_count=0).as_py():
            raise VerificationFailed("samples.parquet holds a time that is not finite")
        for case_id, name, regime, count in _count_keys(part):
            if (case_id, name) not in keys:
                raise VerificationFailed(
                    f"samples.parquet has samples of {name} on {case_id}, which is no record"
                )
            counts[case_id, name, regime] += count
    for record in records:
        # A record that a check found implausible states no count of its samples.
        if record.status == Status.OK:
            what = f"samples.parquet: samples of {record.implementation} on {record.case_id}"
            regime = Regime.of_samples(Mode(record.mode))
            same(what, counts[(*record.key, regime.value)], record.n_samples or 0)
    same("samples.parquet: rows", counts.total(), logged)
    return counts.total()


def check_archived(path: Path, table: str, predicate: Predicate) -> None:
    """Check a table of which no plan and no log are there: it is what the manifest says."""
    _count_rows(path, table, predicate)
    if table != "records":
        for _ in _parts(path, table, predicate.run_id):
            pass
        return
    records = read_rows(path, predicate.run_id)
    signed = predicate.environment.gpu
    gpus = sorted({r.gpu_name for r in records if r.gpu_name})
    if signed and not all(_is_device(signed, gpu) for gpu in gpus):
        raise VerificationFailed(f"records.parquet is of {', '.join(gpus)}, signed is {signed}")
    _check_summary(records, predicate)


def controls_caught(records: Sequence[Row]) -> bool:
    """Whether no control was missed, and none was the only one to prove a check and failed before
    that."""
    outcomes = [
        (
            Group(r.op, Direction(r.direction), Mode(r.mode), r.streams > 1),
            r.caught_by or "",
            Catch(r.caught),
        )
        for r in records
        if r.caught
    ]
    missed = any(caught is Catch.MISSED for _, _, caught in outcomes)
    return not missed and not unproven(outcomes, ())


def _check_machine(
    records: Sequence[Row], plan: Plan, environment: Environment, logged: Logged
) -> None:
    """Records and environment state the device and the versions that the worker described."""
    described = logged.described
    software, device = described.software, described.device
    expected = {
        "gpu_name": device.name or "",
        "torch": software.torch,
        "triton": software.triton,
        "cuda": software.torch_cuda,
    }
    for record in records:
        for name, value in expected.items():
            same(f"records.parquet: {name}, by the log,", getattr(record, name), value)
    torch, gpu = environment.software.torch, environment.gpu
    if torch is not None:
        same("environment.json: torch, by the log,", torch, software.torch)
    if plan.device == "cuda" and gpu is not None and not _is_device(gpu.name or "", device.name):
        same("environment.json: the GPU, by the log,", gpu.name or "", device.name or "")


def _check_summary(records: Sequence[Row], predicate: Predicate) -> None:
    """The manifest says in brief what the records say."""
    signed = predicate.environment
    for record in records:
        if predicate.plan.device == "cuda" and not _is_device(signed.gpu or "", record.gpu_name):
            same("what was signed: gpu", signed.gpu or "", record.gpu_name or "")
        for name in ("torch", "triton", "cuda"):
            if getattr(signed, name) is not None:
                same(f"what was signed: {name}", getattr(signed, name), getattr(record, name))
    what = "what was signed: controls_caught"
    same(what, predicate.controls_caught, controls_caught(records))


def _is_device(named: str, measured: str | None) -> bool:
    """Whether the measured device is the named one: torch adds its MIG slice to the name."""
    return (measured or "") == named or (measured or "").startswith(f"{named} MIG ")


def _count_rows(path: Path, table: str, predicate: Predicate | None) -> int:
    name, most = f"{table}.parquet", getattr(limits, table.upper())
    try:
        rows = check_table(path, most)
    except OutOfBounds as error:
        raise VerificationFailed(f"{name} {error}") from None
    except (OSError, pa.ArrowException) as error:
        raise VerificationFailed(f"{name} cannot be read: {str(error).splitlines()[0]}") from None
    if predicate is not None:
        same(f"{name}: rows", rows, getattr(predicate, table))
    return rows


def read_rows(path: Path, run_id: str) -> list[Row]:
    """Return what the checks need of each record, once all are whole records of that run."""
    rows = []
    for part in _parts(path, "records", run_id):
        _check_words("records", part)
        for row in map(Row._make, zip(*(values(part[n]) for n in Row._fields), strict=True)):
            where = f"records.parquet: {row.implementation} on {row.case_id}"
            if row.status != Status.OK and not row.reason:
                raise VerificationFailed(f"{where} is {row.status} without a reason")
            rows.append(row)
    return rows


def _check_words(table: str, part: pa.RecordBatch) -> None:
    """Every row has what all rows have, and its words are of their vocabularies."""
    kind = Record if table == "records" else Comparison
    for name, (word, required) in vocabulary(kind).items():
        if name not in part.schema.names or not (word or required):
            continue
        for value in pc.unique(part[name]).to_pylist():
            said = f"has no {name}" if required and value is None else ""
            try:
                if word is not None and value is not None:
                    word(value)
            except ValueError:
                said = f"has the {name} {value!r}, which is none"
            if said:
                place = values(part[name]).index(value)
                of = [values(part[column])[place] for column in ("implementation", "case_id")]
                raise VerificationFailed(f"{table}.parquet: {of[0]} on {of[1]} {said}")


def _parts(path: Path, table: str, run_id: str) -> Iterator[pa.RecordBatch]:
    """Read a table that `_count_rows` has passed, batch by batch."""
    name = f"{table}.parquet"
    try:
        wrong = misfit(pq.read_schema(path), _COLUMNS[table], _NEEDED[table])
        if wrong:
            raise VerificationFailed(f"{name} {wrong}")
        # All columns, so that a broken page anywhere is found.
        for part in batches(path):
            part.validate(full=True)  # texts are UTF-8
            column = part["run_id"]
            texts = column.dictionary.to_pylist()
            for i in pc.unique(column.indices).to_pylist():
                same(f"{name}: run_id", None if i is None else texts[i], run_id)
            yield part
    except (OSError, pa.ArrowException) as error:
        raise VerificationFailed(f"{name} cannot be read: {str(error).splitlines()[0]}") from None


def _count_keys(part: pa.RecordBatch) -> Iterator[tuple[str, str, str, int]]:
    """How many rows of a batch each case, implementation and regime has."""
    keys = ("case_id", "implementation", "regime")
    table = pa.table({key: part[key].indices for key in keys} | {"row": part["time_ms"]})
    counted = table.group_by(list(keys)).aggregate([("row", "count")])
    texts = [part[key].dictionary.to_pylist() for key in keys]
    for *found, count in zip(*(c.to_pylist() for c in counted.columns), strict=True):
        if None in found:
            raise VerificationFailed("samples.parquet holds a time of nothing")
        case_id, name, regime = (t[i] for t, i in zip(texts, found, strict=True))
        yield case_id, name, regime, count

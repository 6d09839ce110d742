"""Do the files of a run agree with each other and with what was signed about them?

Hashes say that nothing changed since the signature; these checks say that what was signed is a
whole run. Each takes a folder and the signed predicate, and raises `VerificationFailed`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import ValidationError

from nsabench.assessment.tables import RECORDS, SAMPLES, misfit
from nsabench.assessment.verdict import Key
from nsabench.errors import UsageError, VerificationFailed
from nsabench.evidence.manifest import files
from nsabench.evidence.manifest.seal import brief_of, brief_plan, controls_caught, outcomes_of
from nsabench.evidence.manifest.statement import Predicate
from nsabench.execution import journal
from nsabench.execution.chain import Origin
from nsabench.machine.environment.model import Environment
from nsabench.model.journal import Contents
from nsabench.model.plan import Plan
from nsabench.model.record import Column, Record
from nsabench.model.vocabulary import PassName, Status

RECORD_COLUMNS = ["run_id", "case_id", "implementation", "status", "reason", "n_samples", "speedup"]
SAMPLE_COLUMNS = ["run_id", "case_id", "implementation", "time_ms"]


def read_plan(folder: Path, predicate: Predicate | None) -> Plan:
    """The plan, its cases hashed to their ids again and compared with the predicate."""
    try:
        plan = Plan.read(folder / "plan.yaml")
    except UsageError as error:
        raise VerificationFailed(f"plan.yaml: {error}") from None
    if predicate is not None:
        _same("plan.yaml: run_id", plan.run_id, predicate.run_id)
        brief = brief_plan(plan)
        if predicate.plan.ops_sha256 is None:
            brief = brief.model_copy(update={"ops_sha256": None})
        _same("plan.yaml", brief, predicate.plan)
    return plan


def check_environment(folder: Path, predicate: Predicate | None) -> Environment:
    """The environment, once what was signed of it in brief is what it says."""
    try:
        environment = Environment.model_validate_json((folder / "environment.json").read_bytes())
    except (OSError, ValidationError) as error:
        raise VerificationFailed(
            f"environment.json cannot be read: {str(error).splitlines()[0]}"
        ) from None
    if predicate is not None:
        there = brief_of(environment)
        for name, stated in predicate.environment:
            _same(f"environment.json: {name}", getattr(there, name), stated)
    return environment


def read_journal(folder: Path, plan: Plan) -> tuple[Contents, Origin | None]:
    """The journal, which is one of this run and not of another, and who vouches for it."""
    try:
        contents, origin = journal.examine(folder / "journal.jsonl")
    except (OSError, UsageError, VerificationFailed) as error:
        raise VerificationFailed(f"journal.jsonl: {error}") from None
    for line in contents.openings:
        _same("journal.jsonl: run_id", line.run_id, plan.run_id)
        if line.plan_sha256:  # older journals do not say
            _same("journal.jsonl: sha256 of plan.yaml", line.plan_sha256, plan.sha256)
    return contents, origin


def check_journal(folder: Path, plan: Plan) -> tuple[Contents, Origin | None]:
    """Every case of the plan is journaled once, by this run."""
    contents, origin = read_journal(folder, plan)
    if not contents.headers:
        raise VerificationFailed("journal.jsonl has no header")
    _same_members(
        "journal.jsonl: case",
        Counter(entry.case_id for entry in contents.of(PassName.FIRST_LOOK)),
        Counter(planned.id for planned in plan.cases),
    )
    return contents, origin


def check_origin(
    folder: Path, journaled: Contents, origin: Origin | None, predicate: Predicate | None
) -> None:
    """Whoever signed is who measured, by a journal that says so, and environment.json is theirs."""
    if origin is None:
        return  # of a version that did not say who measured
    if predicate is not None:
        _same("journal.jsonl: the key that vouches for it", origin.keyid, predicate.signer.keyid)
    digest = files.sha256(folder, "environment.json")
    for header in journaled.headers:
        _same("environment.json: its sha256, by the journal,", header.environment_sha256, digest)


def check_records(
    folder: Path,
    plan: Plan,
    predicate: Predicate | None,
    environment: Environment,
    journaled: Contents,
) -> list[Record]:
    """The records, once the table holds one complete row for every implementation of every case,
    all of them of the device and the versions that were journaled and signed."""
    table = _read(folder, "records.parquet", RECORDS, RECORD_COLUMNS)
    if predicate is not None:
        _same("records.parquet: rows", table.num_rows, predicate.records)
    _all_of_run("records.parquet", table, plan.run_id)
    keys = list(_keys(table))
    _same_members(
        "records.parquet: record",
        Counter(keys),
        Counter((case.id, name) for case in plan.cases for name in case.implementations),
    )
    records = [_record(row, key) for row, key in zip(table.to_pylist(), keys, strict=True)]
    _check_origin_of(records, plan, environment, journaled)
    if predicate is not None:
        check_summary(table, predicate)
    return records


def _check_origin_of(
    records: Sequence[Record], plan: Plan, environment: Environment, journaled: Contents
) -> None:
    """They state the device and the versions that the worker described, and so does the
    environment, as far as it does."""
    described = journaled.headers[0].described
    software, device = described.software, described.device
    expected = {
        "gpu_name": device.name or "",
        "torch": software.torch,
        "triton": software.triton,
        "cuda": software.torch_cuda,
    }
    for record in records:
        for name, value in expected.items():
            _same(f"records.parquet: {name}, by the journal,", getattr(record, name), value)
    torch, gpu = environment.software.torch, environment.gpu
    if torch is not None:
        _same("environment.json: torch, by the journal,", torch.version, software.torch)
    if plan.device == "cuda" and gpu is not None:
        _same_device("environment.json: the GPU, by the journal,", gpu.name or "", device.name)


def check_summary(table: pa.Table, predicate: Predicate) -> None:
    """What was signed about the records in brief is what they say.

    Raises `VerificationFailed` when it is something else, such as another GPU.
    """

    def column(name: str) -> list[Any]:
        there = name in table.column_names
        return table[name].to_pylist() if there else [None] * table.num_rows

    signed = predicate.environment
    if predicate.plan.device == "cuda":
        for measured in set(column("gpu_name")):
            _same_device("what was signed: gpu", signed.gpu or "", measured)
    for name in ("torch", "triton", "cuda"):
        stated = getattr(signed, name)
        for measured in set(column(name)) if stated is not None else ():
            _same(f"what was signed: {name}", stated, measured)
    caught = controls_caught(outcomes_of(table))
    _same("what was signed: controls_caught", predicate.controls_caught, caught)


def check_archived(data: bytes, predicate: Predicate) -> None:
    """As `check_summary`, of the bytes of a records.parquet by itself."""
    needed = [
        "op",
        "direction",
        "mode",
        "caught_by",
        "caught",
        "gpu_name",
        "torch",
        "triton",
        "cuda",
    ]
    try:
        with pq.ParquetFile(pa.BufferReader(data)) as file:
            wrong = misfit(file.schema_arrow, RECORDS, ["op", "caught_by", "gpu_name"])
            if wrong:
                raise VerificationFailed(f"records.parquet {wrong}")
            there = [name for name in needed if name in file.schema_arrow.names]
            check_summary(file.read(columns=there), predicate)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise VerificationFailed(f"records.parquet cannot be read: {error}") from None


def _same_device(what: str, named: str, measured: str | None) -> None:
    # torch adds to the name of a device the slice of it that it sees.
    if not (measured or "").startswith(f"{named} MIG "):
        _same(what, named, measured or "")


def _keys(table: pa.Table) -> Iterator[Key]:
    return zip(table["case_id"].to_pylist(), table["implementation"].to_pylist(), strict=True)


def _record(row: Mapping[str, Any], key: Key) -> Record:
    """The record that a row holds, once it is a whole one."""
    where = f"records.parquet: {key[1]} on {key[0]}"
    try:
        record = Record.from_row(row)
    except ValueError as error:
        raise VerificationFailed(f"{where} {error}") from None
    if record.status is not Status.OK and not record.reason:
        raise VerificationFailed(f"{where} is {record.status} without a reason")
    if record.status is not Status.OK and record.speedup is not None:
        raise VerificationFailed(f"{where} is {record.status} and yet has a speed-up")
    return record


def check_samples(
    folder: Path, plan: Plan, predicate: Predicate | None, records: Sequence[Record]
) -> pa.Table:
    """The table, once each record that is `ok` has as many finite samples as it says."""
    table = _read(folder, "samples.parquet", SAMPLES, SAMPLE_COLUMNS)
    if predicate is not None:
        _same("samples.parquet: rows", table.num_rows, predicate.samples)
    _all_of_run("samples.parquet", table, plan.run_id)
    times = table["time_ms"]
    if times.null_count or not pc.all(pc.is_finite(times), min_count=0).as_py():
        raise VerificationFailed("samples.parquet holds a time that is no finite number")
    grouped = table.group_by(["case_id", "implementation"]).aggregate([("time_ms", "count")])
    counts = dict(zip(_keys(grouped), grouped["time_ms_count"].to_pylist(), strict=True))
    by_key = {record.key: record for record in records}
    for key in counts:
        if key not in by_key:
            raise VerificationFailed(
                f"samples.parquet has samples of {key[1]} on {key[0]}, which is no record"
            )
    for key, record in by_key.items():
        # What a check found implausible keeps its samples and states no count of them.
        if record.status is Status.OK:
            what = f"samples.parquet: samples of {key[1]} on {key[0]}"
            _same(what, counts.get(key, 0), record.n_samples)
    return table


def _read(folder: Path, name: str, columns: list[Column], needed: list[str]) -> pa.Table:
    try:
        with pq.ParquetFile(folder / name, pre_buffer=True) as file:
            wrong = misfit(file.schema_arrow, columns, needed)
            if wrong:
                raise VerificationFailed(f"{name} {wrong}")
            # All columns, so that a broken page anywhere is found.
            table = file.read()
            table.validate(full=True)  # texts are UTF-8
            return table
    except (OSError, pa.ArrowException) as error:
        raise VerificationFailed(f"{name} cannot be read: {str(error).splitlines()[0]}") from None


def _all_of_run(name: str, table: pa.Table, run_id: str) -> None:
    for value in pc.unique(table["run_id"]).to_pylist():
        _same(f"{name}: run_id", value, run_id)


def _same(what: str, value: object, expected: object) -> None:
    if value != expected:
        raise VerificationFailed(f"{what} is {value!r} and should be {expected!r}")


def _same_members(what: str, members: Counter[object], expected: Counter[object]) -> None:
    for key, count in (expected - members).items():
        raise VerificationFailed(f"{what} {_text(key)} is missing ({count} of {expected[key]})")
    for key, count in (members - expected).items():
        raise VerificationFailed(f"{what} {_text(key)} is there {count} times too often")


def _text(key: object) -> str:
    return " ".join(map(str, key)) if isinstance(key, tuple) else str(key)

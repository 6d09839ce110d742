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
from nsabench.evidence.manifest.seal import brief_plan
from nsabench.evidence.manifest.statement import Predicate
from nsabench.execution import journal
from nsabench.machine.environment.model import Environment
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


def check_environment(folder: Path) -> str:
    try:
        environment = Environment.model_validate_json((folder / "environment.json").read_bytes())
    except (OSError, ValidationError) as error:
        raise VerificationFailed(
            f"environment.json cannot be read: {str(error).splitlines()[0]}"
        ) from None
    return "complete" if environment.complete else "not complete"


def check_journal(folder: Path, plan: Plan) -> str:
    """Every case of the plan is journaled once, by this run."""
    try:
        contents = journal.read(folder / "journal.jsonl")
    except (OSError, UsageError) as error:
        raise VerificationFailed(f"journal.jsonl: {error}") from None
    if not contents.headers:
        raise VerificationFailed("journal.jsonl has no header")
    for header in contents.headers:
        _same("journal.jsonl: run_id", header.run_id, plan.run_id)
        if header.plan_sha256:  # older journals do not say
            _same("journal.jsonl: sha256 of plan.yaml", header.plan_sha256, plan.sha256)
    _same_members(
        "journal.jsonl: case",
        Counter(entry.case_id for entry in contents.of(PassName.FIRST_LOOK)),
        Counter(planned.id for planned in plan.cases),
    )
    return f"{len(contents.of(PassName.FIRST_LOOK))} cases"


def check_records(folder: Path, plan: Plan, predicate: Predicate | None) -> list[Record]:
    """The records, once the table holds one complete row for every implementation of every case."""
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
    return [_record(row, key) for row, key in zip(table.to_pylist(), keys, strict=True)]


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

"""Is each row of records.parquet a whole record? A part of the table is looked at by its columns,
since there may be very many rows; only where that finds a fault, row by row, to say where it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from nsabench.assessment.tables import rows_of, values
from nsabench.assessment.verdict import Key
from nsabench.errors import VerificationFailed
from nsabench.model.record import SHAPE, Record, vocabulary
from nsabench.model.vocabulary import Status


def counts(part: pa.RecordBatch) -> dict[Key, int | None]:
    """How many samples each record of a part states, or None where it is not `ok`.

    Raises `VerificationFailed` when a row is no whole record.
    """
    if not _whole(part):
        for row in rows_of(part):
            _record(row)
    names = ("case_id", "implementation", "status", "n_samples")
    return {
        (case_id, name): (stated or 0) if status == Status.OK else None
        for case_id, name, status, stated in zip(
            *(values(part[column]) for column in names), strict=True
        )
    }


def differing(part: pa.RecordBatch, columns: Sequence[str]) -> Iterator[Record]:
    """One record of a part for each different thing that its rows state in some columns. The part
    has passed `counts`."""
    there = [name for name in columns if name in part.schema.names]
    first: dict[tuple[Any, ...], int] = {}
    for place, stated in enumerate(zip(*(values(part[n]) for n in there), strict=True)):
        first.setdefault(stated, place)
    for place in first.values():
        yield from map(_record, rows_of(part.slice(place, 1)))


def _whole(part: pa.RecordBatch) -> bool:
    """Whether every row is a whole record, by the columns of a part."""
    for name, (word, required) in vocabulary().items():
        if name == SHAPE:
            continue
        if name not in part.schema.names:
            if required:
                return False
            continue
        column = part[name]
        if required and column.null_count:
            return False
        try:
            if word is not None:
                for value in pc.unique(column.drop_null()).to_pylist():
                    word(value)
        except ValueError:
            return False
    failed = pc.invert(_is(part["status"], Status.OK.value))
    reasoned = pc.invert(pc.fill_null(_is(part["reason"], ""), True))
    spared = pc.or_(pc.invert(failed), pc.and_(reasoned, part["speedup"].is_null()))
    return bool(pc.all(spared, min_count=0).as_py())


def _is(column: pa.Array, text: str) -> pa.Array:
    """Whether each text of a column is this one; None where there is none. A part holds each text
    once, and none is spelt out here at every row."""
    return pc.equal(column.dictionary, text).take(column.indices)


def _record(row: Mapping[str, Any]) -> Record:
    """The record that a row holds, once it is a whole one."""
    where = f"records.parquet: {row['implementation']} on {row['case_id']}"
    try:
        record = Record.from_row(row)
    except ValueError as error:
        raise VerificationFailed(f"{where} {error}") from None
    if record.status is not Status.OK and not record.reason:
        raise VerificationFailed(f"{where} is {record.status} without a reason")
    if record.status is not Status.OK and record.speedup is not None:
        raise VerificationFailed(f"{where} is {record.status} and yet has a speed-up")
    return record

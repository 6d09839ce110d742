"""The tables of a run, records.parquet and samples.parquet: their schemas, and records read back.

Sizes of shapes (N, H, D, Dv, L, ...) are int64 and nullable, one for every size of every op.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from operator import attrgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from nsabench import limits, ops
from nsabench.errors import UsageError
from nsabench.model.record import SHAPE, Column, Record, Sample, columns, size_columns
from nsabench.reading import OutOfBounds, opened

# Those of the ops that ship; an op from outside adds its own to the table of its run.
SIZES = {size for name in ops.shipped() for size in ops.get(name).shape_model.model_fields}
RECORDS = columns(Record, SIZES)
SAMPLES = columns(Sample)
BATCH = 1 << 16  # rows that are read together
ARROW = {str: pa.string(), float: pa.float64(), int: pa.int64(), bool: pa.bool_()}


def schema(columns: Iterable[Column]) -> pa.Schema:
    """The Arrow schema, with unit and meaning of each column in its field metadata."""
    return pa.schema(
        [
            pa.field(c.name, ARROW[c.type], metadata={"unit": c.unit, "meaning": c.meaning})
            for c in columns
        ]
    )


def misfit(schema: pa.Schema, columns: Iterable[Column], needed: Iterable[str]) -> str:
    """What keeps a table from being read as `columns`, of which `needed` must be there; or ""."""
    types, needed = {c.name: ARROW[c.type] for c in columns}, tuple(needed)
    # SQL does not tell `RUN_ID` from `run_id`: one of them would be asked for by the other's name.
    known = {name.lower(): name for name in types}
    for name in schema.names:
        if known.get(name.lower(), name) != name:
            return f"has a column {name!r} that is called {known[name.lower()]}"
    for name in dict.fromkeys([*needed, *(n for n in schema.names if n in types)]):
        places = schema.get_all_field_indices(name)
        if len(places) != 1:
            return f"has {len(places) or 'no'} column{'s' if places else ''} {name}"
        there = schema.field(places[0]).type
        empty = pa.types.is_null(there) and name not in needed
        if there != types[name] and not empty:
            return f"has {there} in column {name} and not {types[name]}"
    return ""


def of_records(records: Sequence[Record], sizes: Iterable[str] | None = None) -> pa.Table:
    """The table that records.parquet holds: sizes of ops from outside come last.

    sizes: all that there are, where these records are a part of a table.
    """
    found = {size for record in records for size in record.shape} if sizes is None else set(sizes)
    named = schema([*RECORDS, *size_columns(found - SIZES)])
    fixed = [field.name for field in fields(Record) if field.name != SHAPE]
    values = zip(*map(attrgetter(*fixed), records), strict=True)
    cells: dict[str, Sequence[Any]] = dict(zip(fixed, values, strict=True)) if records else {}
    for name in named.names:
        if name not in cells:
            cells[name] = [record.shape.get(name) for record in records]
    return pa.Table.from_pydict(cells, schema=named)


def refuse_sizes(op: ops.Op) -> None:
    """Raises `UsageError` when a size of an op has the name of a column that is no size."""
    others = {column.name for column in RECORDS} - SIZES | {field.name for field in fields(Record)}
    sizes = set(op.shape_model.model_fields)
    # SQL does not tell `n` from `N`.
    lower = Counter(name.lower() for name in others | SIZES | sizes)
    for size in op.shape_model.model_fields:
        if size in others or lower[size.lower()] > 1:
            raise UsageError(
                f"the op {op.name!r} calls a size {size!r}, as a column of the records is called",
                "give the size another name.",
            )


def read_records(folder: Path) -> list[Record]:
    """The records of a finished run. Raises `UsageError` if the folder holds none."""
    return records_in(folder / "records.parquet")


def records_in(path: Path) -> list[Record]:
    """The same of a file of any name."""
    folder = path.parent
    try:
        check_table(path, limits.RECORDS)
        wrong = misfit(pq.read_schema(path), RECORDS, ())
        parts = list(batches(path)) if not wrong else []
    except (OSError, pa.ArrowException):
        raise UsageError(
            f"{folder} holds no records", "give a finished run; `all --resume` finishes one."
        ) from None
    except OutOfBounds as error:
        raise UsageError(
            f"{path.name} of {folder} {error}", "give the folder as it was made."
        ) from None
    if not wrong:
        try:
            return [Record.from_row(row) for part in parts for row in rows_of(part)]
        except ValueError as error:
            wrong = f"holds a record that {error}"
    raise UsageError(f"{path.name} of {folder} {wrong}", "give the folder as it was made.")


def check_table(path: Path, most: int) -> int:
    """Return how many rows a Parquet file has, by its metadata; nothing of it is unpacked.

    Raises `OutOfBounds` if it has more than `most` rows, or unpacks to too much, and `OSError` and
    `pa.ArrowException` if it cannot be read.
    """
    with opened(path, limits.TABLE):
        metadata = pq.read_metadata(path)
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    rows: int = metadata.num_rows
    if not 0 <= rows <= most:
        raise OutOfBounds(f"has {rows} rows, more than {most}")
    if sum(group.num_rows for group in groups) != rows:
        raise OutOfBounds("has another number of rows than it says")
    if metadata.num_columns > limits.COLUMNS:
        raise OutOfBounds(f"has more than {limits.COLUMNS} columns")
    if sum(group.total_byte_size for group in groups) > limits.UNPACKED:
        raise OutOfBounds(f"unpacks to more than {limits.UNPACKED // limits.GIB} GiB")
    return rows


def batches(path: Path, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Read a table that `check_table` has passed, batch by batch. Columns of texts are
    dictionaries, so that a batch holds each text once."""
    texts = [field.name for field in pq.read_schema(path) if field.type == pa.string()]
    with pq.ParquetFile(path, read_dictionary=texts) as file:
        yield from file.iter_batches(BATCH, columns=columns, use_threads=False)


def rows_of(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """The rows of a batch by column. Rows with the same text share it."""
    for row in zip(*map(values, batch.columns), strict=True):
        yield dict(zip(batch.schema.names, row, strict=True))


def values(column: pa.Array) -> list[Any]:
    """What a column of a batch holds, row by row. Rows with the same text share it."""
    if not pa.types.is_dictionary(column.type):
        plain: list[Any] = column.to_pylist()
        return plain
    texts = column.dictionary.to_pylist()
    return [None if i is None else texts[i] for i in column.indices.to_pylist()]

"""Write and read the tables of a run: records, comparisons and samples.

The records have a nullable int64 column for every size (N, H, D, Dv, L, ...) of every op.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from nsabench import limits, ops
from nsabench.errors import UsageError
from nsabench.files import replacing
from nsabench.model.record import (
    Column,
    Comparison,
    Record,
    SampleRow,
    columns,
    size_columns,
    values_of,
)
from nsabench.model.vocabulary import Regime
from nsabench.reading import OutOfBounds, opened
from nsabench.verdicts.results import Results

TABLES = ("records", "comparisons", "samples")
# Sizes of the ops that ship. The table of a run also has the sizes of ops from elsewhere.
SIZES = {size for name in ops.shipped() for size in ops.get(name).shape_model.model_fields}
RECORDS = columns(Record, SIZES)
COMPARISONS = columns(Comparison)
SAMPLES = columns(SampleRow)
GIVE_AS_MADE = "give the folder as nsabench made it."
BATCH = 1 << 16  # rows
ROWS_A_GROUP = 1 << 20  # fixed, because the default depends on the version of pyarrow
ARROW = {str: pa.string(), float: pa.float64(), int: pa.int64(), bool: pa.bool_()}


def schema(columns: Iterable[Column]) -> pa.Schema:
    return pa.schema(
        [
            pa.field(c.name, ARROW[c.type], metadata={"unit": c.unit, "meaning": c.meaning})
            for c in columns
        ]
    )


def misfit(schema: pa.Schema, columns: Iterable[Column], needed: Iterable[str]) -> str:
    """Return why a table cannot be read as `columns`, or "". Columns `needed` must exist."""
    types, needed = {c.name: ARROW[c.type] for c in columns}, tuple(needed)
    # SQL does not distinguish `RUN_ID` from `run_id`, so it could read the wrong one.
    known = {name.lower(): name for name in types}
    for name in schema.names:
        if known.get(name.lower(), name) != name:
            return f"has a column {name!r}, which should be {known[name.lower()]}"
    for name in dict.fromkeys([*needed, *(n for n in schema.names if n in types)]):
        places = schema.get_all_field_indices(name)
        if len(places) != 1:
            return f"has {len(places) or 'no'} column{'s' if places else ''} {name}"
        there = schema.field(places[0]).type
        empty = pa.types.is_null(there) and name not in needed
        if there != types[name] and not empty:
            return f"has {there} in column {name} and not {types[name]}"
    return ""


def write_tables(results: Results, run_id: str, folder: Path) -> list[Path]:
    tables = {
        "records": records_table(results.records),
        "comparisons": comparisons_table(results.records),
        "samples": samples_table(run_id, results.records),
    }
    for name, table in tables.items():
        write_table(folder / f"{name}.parquet", table)
    return [folder / f"{name}.parquet" for name in tables]


def write_table(path: Path, table: pa.Table) -> None:
    """Write a table in one step: a reader sees the old file or the new one."""
    with replacing(path) as temporary:
        how = {"compression": "zstd", "compression_level": 9, "row_group_size": ROWS_A_GROUP}
        pq.write_table(table, temporary, **how)


def records_table(records: Sequence[Record]) -> pa.Table:
    """Make the table of records.parquet. Sizes of ops that do not ship come last."""
    found = {size for record in records for size in record.shape}
    named = schema([*RECORDS, *size_columns(found - SIZES)])
    fixed = [column.name for column in columns(Record)]
    values = zip(*map(attrgetter(*fixed), records), strict=True)
    cells: dict[str, Sequence[Any]] = dict(zip(fixed, values, strict=True)) if records else {}
    for name in named.names:
        if name not in cells:
            cells[name] = [record.shape.get(name) for record in records]
    return pa.Table.from_pydict(cells, schema=named)


def comparisons_table(records: Iterable[Record]) -> pa.Table:
    rows = [comparison for record in records for comparison in record.comparisons]
    cells = {c.name: [getattr(row, c.name) for row in rows] for c in COMPARISONS}
    return pa.Table.from_pydict(cells, schema=schema(COMPARISONS))


def samples_table(run_id: str, records: Iterable[Record]) -> pa.Table:
    timed = [
        (record, regime, record.observation.timings(regime))
        for record in records
        if record.observation is not None
        for regime in (record.regime, Regime.QUEUE)
    ]
    counts = [len(timings.time_ms) for _, _, timings in timed]
    rows = np.repeat(np.arange(len(counts)), counts)

    def spread(values: Iterable[str | int], kind: pa.DataType) -> pa.Array:
        return pa.array(values, kind).take(rows)

    columns: dict[str, Any] = {
        "run_id": pa.repeat(run_id, len(rows)),
        "case_id": spread((r.case_id for r, _, _ in timed), pa.string()),
        "implementation": spread((r.implementation for r, _, _ in timed), pa.string()),
        "regime": spread((regime.value for _, regime, _ in timed), pa.string()),
        "attempt": spread((r.attempt for r, _, _ in timed), pa.int64()),
    }
    for name in {column.name for column in SAMPLES} - columns.keys():
        values: list[Any] = []
        columns[name] = values
        for (_, _, timings), count in zip(timed, counts, strict=True):
            values += getattr(timings, name, None) or [None] * count
    return pa.Table.from_pydict(columns, schema=schema(SAMPLES))


def refuse_sizes(op: ops.Op) -> None:
    """Raise `UsageError` if a size of an op has the name of another column."""
    others = {column.name for column in RECORDS} - SIZES | {field.name for field in fields(Record)}
    sizes = set(op.shape_model.model_fields)
    # SQL does not distinguish `n` from `N`.
    lower = Counter(name.lower() for name in others | SIZES | sizes)
    for size in op.shape_model.model_fields:
        if size in others or lower[size.lower()] > 1:
            raise UsageError(
                f"the op {op.name!r} has a size {size!r}, but the records have such a column",
                "give the size another name.",
            )


def read_records(folder: Path) -> list[Record]:
    """Read the records of a finished run. Raises `UsageError` if a table is missing or invalid."""
    compared: dict[tuple[Any, Any], list[Comparison]] = defaultdict(list)
    path = folder / "comparisons.parquet"
    with readable(path):
        for row in _read_rows(path, COMPARISONS, limits.COMPARISONS):
            c = Comparison(**values_of(Comparison, row))
            compared[c.case_id, c.implementation].append(c)
    path = folder / "records.parquet"
    with readable(path):
        return [
            Record.from_row(row, compared.get((row.get("case_id"), row.get("implementation")), ()))
            for row in _read_rows(path, RECORDS, limits.RECORDS)
        ]


def _read_rows(path: Path, columns: Sequence[Column], most: int) -> Iterator[dict[str, Any]]:
    for part in checked_batches(path, columns, most):
        for row in zip(*map(values, part.columns), strict=True):
            yield dict(zip(part.schema.names, row, strict=True))


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn errors about a table of a run into `UsageError`."""
    try:
        with opened(path, limits.TABLE):
            yield
    except (OSError, pa.ArrowException):
        raise UsageError(
            f"{path.parent} holds no {path.stem}",
            "give a finished run; `all --resume` finishes one.",
        ) from None
    except ValueError as error:
        fault = str(error) if isinstance(error, OutOfBounds) else f"is invalid: {error}"
        raise UsageError(f"{path.name} of {path.parent} {fault}", GIVE_AS_MADE) from None


def checked_batches(
    source: Path | pa.NativeFile,
    columns: Sequence[Column],
    most: int,
    needed: Iterable[str] = (),
    names: Sequence[str] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Read a table of at most `most` rows, or its columns `names`. Raises `OutOfBounds`."""
    metadata = pq.read_metadata(source)
    check_metadata(metadata, most)
    wrong = misfit(metadata.schema.to_arrow_schema(), columns, needed)
    if wrong:
        raise OutOfBounds(wrong)
    yield from batches(source, names, metadata)


def check_table(path: Path, most: int) -> int:
    """Count the rows in the metadata of a Parquet file. Raises `OutOfBounds` beyond a limit."""
    with opened(path, limits.TABLE):
        return check_metadata(pq.read_metadata(path), most)


def check_metadata(metadata: pq.FileMetaData, most: int) -> int:
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    rows: int = metadata.num_rows
    if not 0 <= rows <= most:
        raise OutOfBounds(f"has {rows} rows, more than {most}")
    if sum(group.num_rows for group in groups) != rows:
        raise OutOfBounds("has another number of rows than its metadata says")
    if metadata.num_columns > limits.COLUMNS:
        raise OutOfBounds(f"has more than {limits.COLUMNS} columns")
    if sum(group.total_byte_size for group in groups) > limits.UNPACKED:
        raise OutOfBounds(f"unpacks to more than {limits.UNPACKED // limits.GIB} GiB")
    return rows


def batches(
    source: Path | pa.NativeFile, columns: Sequence[str] | None = None, metadata: Any = None
) -> Iterator[pa.RecordBatch]:
    """Read a table that `check_table` has passed. A batch holds equal texts only once."""
    metadata = metadata or pq.read_metadata(source)
    texts = [f.name for f in metadata.schema.to_arrow_schema() if f.type == pa.string()]
    with pq.ParquetFile(source, metadata=metadata, read_dictionary=texts) as file:
        yield from file.iter_batches(BATCH, columns=columns, use_threads=False)


def values(column: pa.Array) -> list[Any]:
    """Return the values of a column. Equal texts are one object."""
    if not pa.types.is_dictionary(column.type):
        plain: list[Any] = column.to_pylist()
        return plain
    texts = column.dictionary.to_pylist()
    return [None if i is None else texts[i] for i in column.indices.to_pylist()]

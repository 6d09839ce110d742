"""Write the tables of a run at once, or part by part."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from nsabench.files import replacing
from nsabench.model.record import Record
from nsabench.model.vocabulary import Regime
from nsabench.verdicts.results import Results
from nsabench.verdicts.tables import SAMPLES, of_comparisons, of_records, schema

# Nearly all values of this column differ, so a dictionary would only add to it. Rounded to binary
# fractions of about 1 µs they end in zero bytes, which pack well if bytes are split by place.
SPLIT = "at_s"
_TICK = 2.0**-20
TABLES = ("records", "comparisons", "samples")
# Each group of rows has its own pages for each column, and readers limit their number.
RECORDS_HELD = 20_000
SAMPLES_HELD = 500_000
ROWS_A_GROUP = 1 << 20  # fixed, because the default depends on the version of pyarrow


def write(results: Results, run_id: str, folder: Path) -> list[Path]:
    """Write records.parquet, comparisons.parquet and samples.parquet. Return their paths."""
    paths = [folder / f"{name}.parquet" for name in TABLES]
    for path, table in zip(paths, tables_of(results, run_id), strict=True):
        replace(path, table)
    return paths


def replace(path: Path, table: pa.Table) -> None:
    """Write a table in one step: a reader sees the old file or the new one."""
    with replacing(path) as temporary:
        growing = _Growing(temporary, 0)
        growing.add(table)
        growing.close()


def tables_of(
    results: Results, run_id: str, sizes: Iterable[str] | None = None
) -> tuple[pa.Table, pa.Table, pa.Table]:
    """Make the tables, in the order of `TABLES`. sizes: see `of_records`."""
    return (
        of_records(results.records, sizes),
        of_comparisons(results.records),
        of_samples(run_id, results.records),
    )


def of_samples(run_id: str, records: Iterable[Record]) -> pa.Table:
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
    columns[SPLIT] = _round_to_ticks(columns[SPLIT])
    return pa.Table.from_pydict(columns, schema=schema(SAMPLES))


def _round_to_ticks(seconds: list[float | None]) -> pa.Array:
    known = pa.array(seconds, pa.float64())
    values: NDArray[np.float64] = known.fill_null(0.0).to_numpy()
    # Adding zero removes the sign of a negative zero.
    ticks = np.where(values == 0, values, np.rint(values / _TICK) * _TICK + 0.0)
    return pa.array(ticks, mask=known.is_null().to_numpy(zero_copy_only=False))


class _Growing:
    """A Parquet file that grows by tables, in groups of at least `group` rows."""

    def __init__(self, path: Path, group: int) -> None:
        self._path = path
        self._group = group
        self._held: list[pa.Table] = []
        self._writer: pq.ParquetWriter | None = None

    def add(self, table: pa.Table) -> None:
        self._held.append(table)
        if sum(held.num_rows for held in self._held) >= self._group:
            self._flush()

    def close(self) -> None:
        if self._held:
            self._flush()
        if self._writer is not None:
            self._writer.close()

    def _flush(self) -> None:
        table = pa.concat_tables(self._held)
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._path, table.schema, **_choose_packing(table))
        self._writer.write_table(table, row_group_size=ROWS_A_GROUP)
        self._held = []


class Tables:
    """The tables of a run, written part by part with one group of rows in memory."""

    def __init__(self, folder: Path) -> None:
        groups = (RECORDS_HELD, RECORDS_HELD, SAMPLES_HELD)
        self._tables = [
            _Growing(folder / f"{name}.parquet", group)
            for name, group in zip(TABLES, groups, strict=True)
        ]

    def add(self, parts: Sequence[pa.Table]) -> None:
        """Append the rows of one shard, in the order of `TABLES`."""
        for table, part in zip(self._tables, parts, strict=True):
            table.add(part)

    def __enter__(self) -> Tables:
        return self

    def __exit__(self, *_: object) -> None:
        for table in self._tables:
            table.close()


def _choose_packing(table: pa.Table) -> dict[str, Any]:
    split = [name for name in table.column_names if name == SPLIT]
    return {
        "compression": "zstd",
        "compression_level": 9,
        "use_dictionary": [name for name in table.column_names if name != SPLIT],
        "column_encoding": dict.fromkeys(split, "BYTE_STREAM_SPLIT"),
    }

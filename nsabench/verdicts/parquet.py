"""Write the tables of a run."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from nsabench.files import replacing
from nsabench.model.record import Record
from nsabench.model.vocabulary import Regime
from nsabench.verdicts.results import Results
from nsabench.verdicts.tables import SAMPLES, of_comparisons, of_records, schema

TABLES = ("records", "comparisons", "samples")
ROWS_A_GROUP = 1 << 20  # fixed, because the default depends on the version of pyarrow


def write(results: Results, run_id: str, folder: Path) -> list[Path]:
    """Write records.parquet, comparisons.parquet and samples.parquet. Return their paths."""
    tables = {
        "records": of_records(results.records),
        "comparisons": of_comparisons(results.records),
        "samples": of_samples(run_id, results.records),
    }
    for name, table in tables.items():
        replace(folder / f"{name}.parquet", table)
    return [folder / f"{name}.parquet" for name in tables]


def replace(path: Path, table: pa.Table) -> None:
    """Write a table in one step: a reader sees the old file or the new one."""
    with replacing(path) as temporary:
        how = {"compression": "zstd", "compression_level": 9, "row_group_size": ROWS_A_GROUP}
        pq.write_table(table, temporary, **how)


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
    return pa.Table.from_pydict(columns, schema=schema(SAMPLES))

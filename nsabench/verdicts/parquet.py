"""Writing results so that a reader sees a whole file or none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from nsabench.files import replacing
from nsabench.model.measurement import Bursts, Samples
from nsabench.verdicts.results import Results, Timed
from nsabench.verdicts.tables import SAMPLES, of_comparisons, of_records, schema

# Nearly every value of it is another one, so a dictionary only adds to it. Its bytes split by place
# pack well once they end in zeros: binary fractions of about a microsecond.
SPLIT = "at_s"
_TICK = 2.0**-20


def write(results: Results, run_id: str, folder: Path) -> list[Path]:
    """Write records.parquet, comparisons.parquet and samples.parquet. Return their paths."""
    tables = {
        "records": of_records(results.records),
        "comparisons": of_comparisons(results.records),
        "samples": of_samples(run_id, results.samples),
    }
    paths = [folder / f"{name}.parquet" for name in tables]
    for path, table in zip(paths, tables.values(), strict=True):
        replace(path, table)
    return paths


def of_samples(run_id: str, samples: Mapping[Timed, tuple[int, Samples | Bursts]]) -> pa.Table:
    """Return the table that samples.parquet holds."""
    counts = [len(timings.time_ms) for _, timings in samples.values()]
    rows = np.repeat(np.arange(len(counts)), counts)

    def spread(values: Iterable[str | int], kind: pa.DataType) -> pa.Array:
        return pa.array(values, kind).take(rows)

    columns: dict[str, Any] = {
        "run_id": pa.repeat(run_id, len(rows)),
        "case_id": spread((case_id for case_id, _, _ in samples), pa.string()),
        "implementation": spread((name for _, name, _ in samples), pa.string()),
        "regime": spread((regime.value for _, _, regime in samples), pa.string()),
        "attempt": spread((attempt for attempt, _ in samples.values()), pa.int64()),
    }
    for name in {column.name for column in SAMPLES} - columns.keys():
        values: list[Any] = []
        columns[name] = values
        for (_, timings), count in zip(samples.values(), counts, strict=True):
            values += getattr(timings, name, None) or [None] * count  # what nobody read
    columns[SPLIT] = _in_ticks(columns[SPLIT])
    return pa.Table.from_pydict(columns, schema=schema(SAMPLES))


def _in_ticks(seconds: list[float | None]) -> pa.Array:
    """Each rounded to a whole number of ticks."""
    known = pa.array(seconds, pa.float64())
    values: NDArray[np.float64] = known.fill_null(0.0).to_numpy()
    # Of a zero that has a sign, a sum with zero has none.
    ticks = np.where(values == 0, values, np.rint(values / _TICK) * _TICK + 0.0)
    return pa.array(ticks, mask=known.is_null().to_numpy(zero_copy_only=False))


def replace(path: Path, table: pa.Table) -> None:
    """Put the table at `path` in one step: whoever looks sees the old file or the new one."""
    with replacing(path) as temporary:
        pq.write_table(table, temporary, **packing(table.column_names))


def packing(columns: Sequence[str]) -> dict[str, Any]:
    """How a table of these columns is packed."""
    split = [name for name in columns if name == SPLIT]
    return {
        "compression": "zstd",
        "compression_level": 9,
        "use_dictionary": [name for name in columns if name != SPLIT],
        "column_encoding": dict.fromkeys(split, "BYTE_STREAM_SPLIT"),
    }

"""Write the tables of a merged run part by part, with one group of rows in memory."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

import pyarrow as pa
import pyarrow.parquet as pq

from nsabench.verdicts.parquet import packing

# A group has pages of its own for each column, and a reader bounds their number.
RECORDS_A_GROUP = 20_000
SAMPLES_A_GROUP = 500_000


class _Growing:
    """A Parquet file that grows by tables."""

    def __init__(self, path: Path, group: int) -> None:
        self._path = path
        self._group = group
        self._held: list[pa.Table] = []
        self._rows = 0
        self._writer: pq.ParquetWriter | None = None

    def add(self, table: pa.Table) -> None:
        self._held.append(table)
        self._rows += table.num_rows
        if self._rows >= self._group:
            self._flush()

    def _flush(self) -> None:
        if not self._held:
            return
        table = pa.concat_tables(self._held)
        if self._writer is None:
            names = table.column_names
            self._writer = pq.ParquetWriter(self._path, table.schema, **packing(names))
        self._writer.write_table(table)
        self._held, self._rows = [], 0

    def close(self) -> None:
        self._flush()
        if self._writer is not None:
            self._writer.close()


class Tables:
    """records.parquet, comparisons.parquet and samples.parquet in a folder."""

    def __init__(self, folder: Path) -> None:
        self._records = _Growing(folder / "records.parquet", RECORDS_A_GROUP)
        self._comparisons = _Growing(folder / "comparisons.parquet", RECORDS_A_GROUP)
        self._samples = _Growing(folder / "samples.parquet", SAMPLES_A_GROUP)

    def add(self, records: pa.Table, comparisons: pa.Table, samples: pa.Table) -> None:
        """Append the rows of one shard."""
        self._records.add(records)
        self._comparisons.add(comparisons)
        self._samples.add(samples)

    def __enter__(self) -> Tables:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._records.close()
        self._comparisons.close()
        self._samples.close()

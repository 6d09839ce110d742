"""Copies of the tables of verified runs, with many runs in one file.

Opening ten thousand files takes half a minute, so a query reads segments: Parquet files in the
user's cache, each with one table of many runs. Each row has the digest of the table that it comes
from. A query gets the rows with the digests in the manifests of its runs.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from nsabench.evidence.archive.archive import READERS, Archive
from nsabench.evidence.archive.runs import ArchivedRun
from nsabench.evidence.manifest.tables import COLUMNS
from nsabench.files import replacing, user_cache
from nsabench.verdicts.tables import schema

DIGEST = "table_sha256"  # a column that a segment adds
MOST = 100  # segments of a table; if there are more, all are deleted and one is written
ROWS = 1 << 14  # of a row group
_FORMAT = ds.ParquetFileFormat()


def open_segments(archive: Archive, table: str, runs: Sequence[ArchivedRun]) -> list[ds.Dataset]:
    """Return a table of verified runs. Runs that are in no segment are copied into a new one."""
    location = hashlib.sha256(archive.store.location.encode(errors="surrogateescape")).hexdigest()
    folder = user_cache() / "archived-tables" / location[:16]
    with suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    paths = sorted(folder.glob(f"{table}-*.parquet"))
    if len(paths) > MOST:
        for path in paths:
            path.unlink(missing_ok=True)
        paths = []
    missing = {run.digest(table): run for run in runs}
    opened = []
    for path in paths:
        with suppress(OSError, pa.ArrowException):  # another process removed it, or it is damaged
            opened.append(_open(path, missing))
    if missing:
        with TemporaryDirectory() as scratch:
            place = folder if os.access(folder, os.W_OK) else Path(scratch)
            path = place / f"{table}-{token_hex(8)}.parquet"
            _write(path, archive, table, list(missing.values()))
            opened.append(_open(path, missing))
    return opened


def _open(path: Path, missing: dict[str, ArchivedRun]) -> ds.Dataset:
    """Select the rows of missing runs in a segment, and remove these runs from `missing`."""
    file = pa.memory_map(str(path))  # stays readable if another process removes the file
    columns = pq.read_schema(file)
    digests = columns.metadata[DIGEST.encode()].decode().split()
    dataset = ds.FileSystemDataset([_FORMAT.make_fragment(file)], columns, _FORMAT)
    wanted = [digest for digest in digests if missing.pop(digest, None)]
    if wanted == digests:
        return dataset
    return dataset.filter(pc.field(DIGEST).isin(pa.array(wanted, pa.string())))


def _write(path: Path, archive: Archive, table: str, runs: Sequence[ArchivedRun]) -> None:
    columns = _list_columns(table, runs)
    digests = " ".join(run.digest(table) for run in runs)
    with (
        replacing(path) as temporary,
        pq.ParquetWriter(temporary, columns.with_metadata({DIGEST: digests})) as writer,
    ):
        gathered: list[pa.RecordBatch] = []
        for batch in _read(archive, table, runs, columns):
            gathered.append(batch)
            if sum(batch.num_rows for batch in gathered) >= ROWS:
                writer.write_table(pa.Table.from_batches(gathered))
                gathered = []
        writer.write_table(pa.Table.from_batches(gathered, columns))


def _list_columns(table: str, runs: Iterable[ArchivedRun]) -> pa.Schema:
    """Return the columns of all runs. SQL does not distinguish `n` from `N`."""
    own = pa.field(DIGEST, pa.string())
    fields = {field.name.lower(): field for field in [*schema(COLUMNS[table]), own]}
    for run in runs:
        for name, kind in run.unknown.get(table, {}).items():
            field = fields.setdefault(name.lower(), pa.field(name, pa.type_for_alias(kind)))
            if field.type != pa.type_for_alias(kind):
                fields[name.lower()] = field.with_type(pa.string())
    return pa.schema(list(fields.values()))


def _read(
    archive: Archive, table: str, runs: Sequence[ArchivedRun], columns: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a table of many runs. Columns that a run lacks are null."""
    with ThreadPoolExecutor(READERS) as pool:
        for start in range(0, len(runs), READERS):
            group = runs[start : start + READERS]
            contents = pool.map(lambda run: archive.table(run, table), group)
            for run, content in zip(group, contents, strict=True):
                file = pq.ParquetFile(pa.BufferReader(content))
                for batch in file.iter_batches(ROWS, use_threads=False):
                    own = dict(zip(batch.schema.names, batch.columns, strict=True))
                    own[DIGEST] = pa.array([run.digest(table)] * batch.num_rows)
                    cells = [
                        own[field.name].cast(field.type)
                        if field.name in own
                        else pa.nulls(batch.num_rows, field.type)
                        for field in columns
                    ]
                    yield pa.RecordBatch.from_arrays(cells, schema=columns)

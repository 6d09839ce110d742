"""Copies of the tables of verified runs, with many runs in one file.

Opening thousands of files is slow, so a query reads segments: DuckDB files in the user's cache,
each with a table of many runs. Each row names the table that it comes from, and a query gets the
rows of tables whose digest the manifest of a verified run names.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from shutil import rmtree
from tempfile import TemporaryDirectory
from time import time

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from nsabench.errors import EnvironmentRefused
from nsabench.evidence.archive.archive import READERS, Archive
from nsabench.evidence.archive.runs import ArchivedRun
from nsabench.evidence.manifest.tables import COLUMNS
from nsabench.files import user_cache
from nsabench.verdicts.tables import schema

NUMBER = "table_number"  # the column that a segment adds
MOST = 100  # segments of a table; if there are more, all are deleted and one is written
ROWS = 1 << 14  # that are read at once
LONG_S = 24 * 3600.0  # no process copies tables for so long
Connection = duckdb.DuckDBPyConnection
Runs = Sequence[ArchivedRun]


def make_view(connection: Connection, archive: Archive, table: str, runs: Runs) -> None:
    """Make a view of a table of verified runs. Runs that are in no segment are copied into one."""
    location = hashlib.sha256(archive.store.location.encode(errors="surrogateescape")).hexdigest()
    folder = user_cache() / "archived-tables" / location[:16]
    with suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for left in folder.glob("tmp*"):  # by killed processes
            if time() - left.stat().st_mtime > LONG_S:
                rmtree(left)
    paths = sorted(folder.glob(f"{table}-*.duckdb"))
    if len(paths) > MOST:
        for path in paths:
            path.unlink(missing_ok=True)
        paths = []
    missing = {run.digests[table]: run for run in runs}
    connection.register(f"{table}_of_none", schema(COLUMNS[table]).empty_table())
    selects = [f"FROM {table}_of_none"]
    # DuckDB lets a query write to attached paths, so these links are removed before it runs.
    with TemporaryDirectory(dir=folder if os.access(folder, os.W_OK) else None) as scratch:
        for number, path in enumerate(paths):
            link = Path(scratch) / path.name
            with suppress(OSError, duckdb.Error):  # another process removed it, or it is damaged
                link.hardlink_to(path)
                selects.append(_attach(connection, link, f"{table}_{number}", missing))
        if missing:
            path = Path(scratch) / f"{table}-{token_hex(8)}.duckdb"
            _write(connection, path, archive, table, list(missing.values()))
            selects.append(_attach(connection, path, f"{table}_{len(paths)}", missing))
            with suppress(OSError):
                (folder / path.name).hardlink_to(path)
    # A column that a segment lacks is null there.
    connection.execute(f"CREATE VIEW {table} AS {' UNION ALL BY NAME '.join(selects)}")


def _attach(connection: Connection, path: Path, name: str, missing: dict[str, ArchivedRun]) -> str:
    """Select the rows of missing runs in a segment, and remove these runs from `missing`."""
    connection.execute(f"ATTACH {_quote(path)} AS {name} (READ_ONLY)")
    digests = connection.execute(f"SELECT digest, {NUMBER} FROM {name}.digests").fetchall()
    wanted = [number for digest, number in digests if missing.pop(digest, None)]
    connection.register(f"{name}_wanted", pa.table({NUMBER: pa.array(wanted, pa.int64())}))
    return (
        f"SELECT * EXCLUDE ({NUMBER}) FROM {name}.segment SEMI JOIN {name}_wanted USING ({NUMBER})"
    )


def _write(connection: Connection, path: Path, archive: Archive, table: str, runs: Runs) -> None:
    columns = _list_columns(table, runs)
    digests = pa.table({"digest": [r.digests[table] for r in runs], NUMBER: range(len(runs))})
    try:
        connection.execute(f"ATTACH {_quote(path)} AS written")
        connection.execute("BEGIN")
        connection.from_arrow(digests).create("written.digests")
        connection.from_arrow(columns.empty_table()).create("written.segment")
        for rows in _read(archive, table, runs, columns):
            connection.from_arrow(rows).insert_into("written.segment")
        connection.execute("COMMIT")
        connection.execute("CHECKPOINT written")  # DuckDB 1.4's DETACH hides a full disk
        connection.execute("DETACH written")
    except duckdb.Error as error:
        raise EnvironmentRefused(
            f"the tables cannot be copied to {path}: {error}",
            "make room on that disk, or set XDG_CACHE_HOME to a folder on another.",
        ) from error


def _list_columns(table: str, runs: Iterable[ArchivedRun]) -> pa.Schema:
    """Return the columns of all runs. SQL does not distinguish `n` from `N`."""
    fields = {field.name.lower(): field for field in schema(COLUMNS[table])}
    for run in runs:
        for name, kind in run.unknown.get(table, {}).items():
            field = fields.setdefault(name.lower(), pa.field(name, pa.type_for_alias(kind)))
            if field.type != pa.type_for_alias(kind):
                fields[name.lower()] = field.with_type(pa.string())
    return pa.schema(list((fields | {NUMBER: pa.field(NUMBER, pa.int64())}).values()))


def _read(archive: Archive, table: str, runs: Runs, columns: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows of a table of many runs. Columns that a run lacks are null."""
    gathered: list[pa.RecordBatch] = []
    with ThreadPoolExecutor(READERS) as pool:
        for start in range(0, len(runs), READERS):
            group = runs[start : start + READERS]
            contents = pool.map(lambda run: archive.table(run, table), group)
            for number, content in enumerate(contents, start):
                file = pq.ParquetFile(pa.BufferReader(content))
                for batch in file.iter_batches(ROWS, use_threads=False):
                    own = dict(zip(batch.schema.names, batch.columns, strict=True))
                    own[NUMBER] = pa.repeat(number, batch.num_rows)
                    cells = [
                        own[field.name].cast(field.type)
                        if field.name in own
                        else pa.nulls(batch.num_rows, field.type)
                        for field in columns
                    ]
                    gathered.append(pa.RecordBatch.from_arrays(cells, schema=columns))
                    if sum(batch.num_rows for batch in gathered) >= ROWS:
                        yield pa.Table.from_batches(gathered)
                        gathered = []
    yield pa.Table.from_batches(gathered, columns)


def _quote(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"

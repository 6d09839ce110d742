"""Copy the tables of verified runs, many runs into one file.

Opening thousands of files is slow, so a query reads segments: DuckDB files in the user's cache,
each with, for example, the records of many runs. Each row has the number of its run's table. A
query gets only the rows of tables whose digest the manifest of a verified run names.
"""

import hashlib
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from shutil import rmtree
from tempfile import TemporaryDirectory
from time import time

import duckdb
import pyarrow as pa

from nsabench.errors import EnvironmentRefused
from nsabench.evidence.archive.archive import READERS, Archive
from nsabench.evidence.archive.runs import ArchivedRun
from nsabench.evidence.manifest.tables import COLUMNS
from nsabench.files import user_cache
from nsabench.verdicts.tables import ARROW, batches, schema

NUMBER = "table_number"  # the column that a segment adds
MOST = 100  # segments of a table; if there are more, all are deleted and one is written
ROWS = 1 << 14  # rows with equal columns are written as soon as there are so many
LONG_S = 24 * 3600.0  # no process takes so long to copy tables
TYPES = {*ARROW.values(), pa.dictionary(pa.int32(), pa.string())}
# The parts are sorted, since the first part of a union decides whether a column is `n` or `N`.
PARTS = """SELECT database_name, table_name FROM duckdb_columns() WHERE table_name LIKE 'part_%'
           GROUP BY ALL ORDER BY list(column_name ORDER BY column_index) DESC"""
Connection = duckdb.DuckDBPyConnection
Runs = Sequence[ArchivedRun]


def make_view(connection: Connection, archive: Archive, table: str, runs: Runs) -> None:
    """Make a view of a table of verified runs. Runs that are in no segment are copied into one."""
    location = hashlib.sha256(archive.store.location.encode(errors="surrogateescape")).hexdigest()
    folder = user_cache() / "copied-tables" / location[:16]
    with suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for left in folder.glob("tmp*"):  # the folders that killed processes left
            if time() - left.stat().st_mtime > LONG_S:
                rmtree(left)
    paths = sorted(folder.glob(f"{table}-*.duckdb"))
    missing = {run.digests[table]: run for run in runs}
    attached = []
    # DuckDB lets a query write to attached paths, so these links are removed before it runs.
    with TemporaryDirectory(dir=folder if os.access(folder, os.W_OK) else None) as scratch:
        for path in paths:
            link = Path(scratch) / path.name
            with suppress(OSError, duckdb.Error):  # the segment was removed or is damaged
                if len(paths) > MOST:
                    path.unlink()
                    continue
                link.hardlink_to(path)
                attached.append(_attach(connection, link, missing))
        if missing:
            path = Path(scratch) / f"{table}-{token_hex(8)}.duckdb"
            _write(connection, path, archive, table, list(missing.values()))
            attached.append(_attach(connection, path, missing))
            with suppress(OSError):
                (folder / path.name).hardlink_to(path)
    connection.register(f"{table}_of_none", schema(COLUMNS[table]).empty_table())
    selects = [f"FROM {table}_of_none"]
    for name, part in connection.execute(PARTS).fetchall():
        if name in attached:
            wanted = f"SEMI JOIN {name}_wanted USING ({NUMBER})"
            selects.append(f"SELECT * EXCLUDE ({NUMBER}) FROM {name}.{part} {wanted}")
    # A column that a segment lacks is null there.
    connection.execute(f"CREATE VIEW {table} AS {' UNION ALL BY NAME '.join(selects)}")


def _attach(connection: Connection, path: Path, missing: dict[str, ArchivedRun]) -> str:
    """Attach a segment, remove its runs from `missing`, and list their numbers for the view."""
    name = path.stem.replace("-", "_")
    connection.execute(f"ATTACH {_quote(path)} AS {name} (READ_ONLY)")
    digests = connection.execute(f"SELECT digest, {NUMBER} FROM {name}.digests").fetchall()
    wanted = [number for digest, number in digests if missing.pop(digest, None)]
    connection.register(f"{name}_wanted", pa.table({NUMBER: pa.array(wanted, pa.int64())}))
    return name


def _write(connection: Connection, path: Path, archive: Archive, table: str, runs: Runs) -> None:
    digests = pa.table({"digest": [r.digests[table] for r in runs], NUMBER: range(len(runs))})
    parts: dict[pa.Schema, str] = {}
    try:
        connection.execute(f"ATTACH {_quote(path)} AS written")
        connection.execute("BEGIN")
        connection.from_arrow(digests).create("written.digests")
        for rows in _read(archive, table, runs):
            if rows.schema not in parts:
                parts[rows.schema] = f"written.part_{len(parts)}"
                connection.from_arrow(rows.schema.empty_table()).create(parts[rows.schema])
            connection.from_arrow(rows).insert_into(parts[rows.schema])
        connection.execute("COMMIT")
        connection.execute("CHECKPOINT written")  # DuckDB 1.4's DETACH ignores a full disk
        connection.execute("DETACH written")
    except duckdb.Error as error:
        raise EnvironmentRefused(
            f"the tables cannot be copied to {path}: {error}",
            "make room on that disk, or set XDG_CACHE_HOME to a folder on another.",
        ) from error


def _read(archive: Archive, table: str, runs: Runs) -> Iterator[pa.Table]:
    """Yield the rows of a table of many runs. Rows that are yielded together have equal columns."""
    gathered: dict[pa.Schema, list[pa.RecordBatch]] = defaultdict(list)
    with ThreadPoolExecutor(READERS) as pool:
        for start in range(0, len(runs), READERS):
            group = runs[start : start + READERS]
            contents = pool.map(lambda run: archive.table(run, table), group)
            for number, content in enumerate(contents, start):
                for batch in batches(pa.BufferReader(content)):
                    columns, seen = {NUMBER: pa.repeat(number, batch.num_rows)}, {NUMBER}
                    for name, column in zip(batch.schema.names, batch.columns, strict=True):
                        if column.type in TYPES and name.lower() not in seen:
                            seen.add(name.lower())  # SQL does not distinguish `n` from `N`
                            columns[name] = column
                    part = pa.RecordBatch.from_pydict(columns)
                    parts = gathered[part.schema]
                    parts.append(part)
                    if sum(part.num_rows for part in parts) >= ROWS:
                        yield pa.Table.from_batches(gathered.pop(part.schema))
    yield from map(pa.Table.from_batches, gathered.values())


def _quote(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"

"""Query the runs of an archive and their tables in SQL, with DuckDB.

DuckDB has no access to files, extensions or the network, and its configuration is locked before the
query runs. It reads the tables as streams of Arrow, of the columns that the query needs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Timer
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from nsabench import limits
from nsabench.errors import EnvironmentRefused, NsabenchError, UsageError
from nsabench.evidence.archive.archive import READERS, Archive
from nsabench.evidence.archive.runs import ArchivedRun
from nsabench.evidence.archive.store import INSTALL
from nsabench.evidence.manifest.tables import COLUMNS
from nsabench.machine.environment.pairs import describe_mismatch
from nsabench.reading import size
from nsabench.verdicts.tables import BATCH, schema

try:
    import duckdb
except ImportError as error:
    raise EnvironmentRefused("a query needs duckdb, which is not installed", INSTALL) from error

MEMORY = 512 * limits.MIB  # for DuckDB, and as much again for the answer
PATIENCE_S = 60.0
_BATCH = 10_000
_CONFIGURATION: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": False,
    "memory_limit": f"{MEMORY // limits.MIB}MiB",
    "python_enable_replacements": False,
    "temp_directory": "",
}


def query(
    archive: Archive,
    sql: str,
    runs: Sequence[ArchivedRun] | None = None,
    *,
    patience_s: float = PATIENCE_S,
) -> pa.Table:
    """Return the answer of a query over some runs of an archive (None: all sound runs).

    A column that a run does not have is null for that run. Raises `UsageError` if the archive is
    empty, DuckDB refuses the query, or the answer takes too much time or memory.
    """
    runs = archive.runs() if runs is None else runs
    if not runs:
        raise UsageError(f"{archive.store.location} holds no runs", "add one: archive add RUN.")
    with duckdb.connect(config=_CONFIGURATION) as connection:
        interrupt = Timer(patience_s, connection.interrupt)
        views: list[_View] = []
        try:
            connection.register("runs", _runs(runs))
            views += [_View(archive, runs, table) for table in COLUMNS]
            for view in views:
                connection.register(view.table, view)
            connection.execute("SET lock_configuration = true")
            interrupt.start()
            needed = _list_columns(connection, sql)
            for view in views:
                view.needed = needed
            return _answer(connection, sql)
        except duckdb.InterruptException:
            raise UsageError(
                f"the query takes more than {patience_s:g} s", "ask for less."
            ) from None
        except (duckdb.Error, pa.ArrowException) as error:
            for view in views:
                if view.failure is not None:
                    raise view.failure from None
            sentence = " ".join(str(error).split())[:300]
            raise UsageError(
                f"the query cannot be answered: {sentence}",
                "it may select from runs, records, comparisons and samples, in DuckDB's SQL.",
            ) from None
        finally:
            interrupt.cancel()


class _View:
    """A table of many runs, as a stream of Arrow that can be read again."""

    def __init__(self, archive: Archive, runs: Sequence[ArchivedRun], table: str) -> None:
        self.table = table
        # The columns that have values; None: all. DuckDB does not say which it needs of a stream.
        self.needed: set[str] | None = None
        self.failure: NsabenchError | None = None  # DuckDB would hide its class and its remedy
        self._archive, self._runs = archive, runs
        known = schema(COLUMNS[table]).remove_metadata()
        others = {run.columns[table] for run in runs if table in run.columns}
        schemas = [pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(other))) for other in others]
        self._schema = pa.unify_schemas([known, *schemas], promote_options="default")

    def __arrow_c_schema__(self) -> object:
        return self._schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        reader = pa.RecordBatchReader.from_batches(self._schema, self._batches())
        return reader.__arrow_c_stream__(requested_schema)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        # Files keep processors busy, and a bucket lets them wait.
        readers = READERS if self._archive.store.folder is None else os.cpu_count()
        try:
            with ThreadPoolExecutor(readers) as pool:
                for runs in self._groups():
                    if len(runs) == 1:
                        for batch in self._read(runs[0]):
                            yield from self._complete([batch])
                    else:
                        parts = pool.map(lambda run: list(self._read(run)), runs)
                        yield from self._complete([batch for part in parts for batch in part])
        except NsabenchError as error:
            self.failure = error
            raise

    def _groups(self) -> Iterator[list[ArchivedRun]]:
        group: list[ArchivedRun] = []
        rows = 0
        for run in self._runs:
            count = getattr(run.statement.predicate, self.table)
            if group and rows + count > BATCH:
                yield group
                group, rows = [], 0
            group.append(run)
            rows += count
        yield group

    def _read(self, run: ArchivedRun) -> Iterator[pa.RecordBatch]:
        with pq.ParquetFile(self._archive.table(run, self.table)) as file:
            names = file.schema_arrow.names
            if self.needed is not None:
                # At least one column: without any, a batch has no rows.
                names = [name for name in names if name in self.needed] or ["run_id"]
            yield from file.iter_batches(BATCH, columns=names, use_threads=False)

    def _complete(self, batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Join batches and add columns: those that were not read, and those that a run lacks."""
        if not batches:
            return
        tables = [pa.Table.from_batches([batch]) for batch in batches]
        table = pa.concat_tables(tables, promote_options="default")
        columns = [
            table[field.name].cast(field.type)
            if field.name in table.column_names
            else pa.nulls(table.num_rows, field.type)
            for field in self._schema
        ]
        yield from pa.table(columns, schema=self._schema).combine_chunks().to_batches()


def _list_columns(connection: duckdb.DuckDBPyConnection, sql: str) -> set[str] | None:
    """Return the names of the columns that a query reads from any table; None if unknown."""
    try:
        if len(connection.extract_statements(sql)) != 1:
            return None
        [[_, plan]] = connection.execute(f"EXPLAIN (FORMAT json) {sql}").fetchall()
        return set(_scanned(json.loads(plan)))
    except duckdb.InterruptException:
        raise
    except (duckdb.Error, ValueError, LookupError):
        return None  # if the query is wrong, its own error says so


def _scanned(nodes: Iterable[dict[str, Any]]) -> Iterator[str]:
    for node in nodes:
        if "ARROW_SCAN" in node["name"]:
            names = node["extra_info"]["Projections"]
            yield from [names] if isinstance(names, str) else names
        yield from _scanned(node["children"])


def _answer(connection: duckdb.DuckDBPyConnection, sql: str) -> pa.Table:
    answer = connection.sql(sql)
    if answer is None:
        raise UsageError("the query has no answer", "ask with SELECT.")
    # DuckDB 2.0 renamed the method.
    read = getattr(answer, "to_arrow_reader", None) or answer.fetch_arrow_reader
    reader = read(_BATCH)
    batches, taken = [], 0  # a short query can ask for an answer of any size
    for batch in reader:
        taken += batch.nbytes
        if taken > MEMORY:
            raise UsageError(f"the answer has more than {size(MEMORY)}", "ask for less.")
        batches.append(batch)
    return pa.Table.from_batches(batches, reader.schema)


def _runs(runs: Sequence[ArchivedRun]) -> pa.Table:
    rows = []
    for run in runs:
        p = run.statement.predicate
        rows.append(
            {
                "run_id": p.run_id,
                "created": p.plan.created,
                "signed": p.signed,
                "trust": run.trust.value,
                "keyid": p.signer.keyid,
                "device": p.plan.device,
                "shard": p.plan.shard,
                "nsabench": p.plan.nsabench,
                "matrices": ", ".join(sorted(p.plan.matrices)),
                "cases": p.plan.cases,
                "records": p.records,
                "comparisons": p.comparisons,
                "samples": p.samples,
                "controls_caught": p.controls_caught,
                **p.environment.model_dump(exclude={"commits"}),
                "commit": p.environment.commits.get("nsabench"),
                "kernels_commit": p.environment.commits.get("kernels"),
                # Empty if the torch and the Triton belong together.
                "unpaired": describe_mismatch(p.environment.torch, p.environment.triton),
            }
        )
    return pa.Table.from_pylist(rows)

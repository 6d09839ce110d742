"""SQL over an archive: the views `runs`, `records` and `samples`, through DuckDB."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa

from nsabench.errors import EnvironmentRefused, UsageError
from nsabench.evidence.archive.archive import READERS, TABLES, Archive, ArchivedRun
from nsabench.evidence.archive.store import _INSTALL

try:
    import duckdb
except ImportError as error:
    raise EnvironmentRefused("a query needs duckdb, which is not installed", _INSTALL) from error


def query(archive: Archive, sql: str) -> pa.Table:
    """The answer. Columns that older runs do not have are null there.

    Raises `UsageError` when DuckDB does not accept the query.
    """
    with duckdb.connect() as connection, TemporaryDirectory() as scratch:
        try:
            # A view and each question to it read the footer of every file; once is enough.
            connection.execute("SET parquet_metadata_cache = true")
            # Only what the query may mean is opened: a view reads the schema of every file.
            words = {word.lower() for word in re.findall(r"\w+", sql)}
            runs = archive.runs()
            if not runs and words.intersection(["runs", *TABLES]):
                raise UsageError(
                    f"{archive.store.location} holds no runs", "add one: archive add RUN."
                )
            if "runs" in words:
                connection.register("runs", _runs(runs))
            for table in words.intersection(TABLES):
                _view(connection, archive, runs, table, Path(scratch))
            answer = connection.sql(sql)
            if answer is None:
                raise UsageError("that is no question", "ask with SELECT.")
            return answer.to_arrow_table()
        except duckdb.Error as error:
            sentence = " ".join(str(error).split())[:300]
            raise UsageError(
                f"the query cannot be answered: {sentence}",
                "it may select from runs, records and samples, in DuckDB's SQL.",
            ) from None


def _view(
    connection: duckdb.DuckDBPyConnection,
    archive: Archive,
    runs: list[ArchivedRun],
    table: str,
    scratch: Path,
) -> None:
    names = [run.object(table) for run in runs]
    folder = archive.store.folder
    if folder is None:
        with ThreadPoolExecutor(READERS) as pool:
            for name, data in zip(names, pool.map(archive.store.read, names), strict=True):
                (scratch / name.replace("/", "_")).write_bytes(data)
        paths = [str(scratch / name.replace("/", "_")) for name in names]
    else:
        paths = [str(folder / name) for name in names]
    connection.read_parquet(paths, union_by_name=True, hive_partitioning=False).create_view(table)


def _runs(runs: list[ArchivedRun]) -> pa.Table:
    rows = []
    for run in runs:
        p = run.statement.predicate
        rows.append(
            {
                "run_id": p.run_id,
                "created": p.plan.created,
                "signed": p.signed,
                "trust": p.signer.trust.value,
                "keyid": p.signer.keyid,
                "device": p.plan.device,
                "shard": p.plan.shard,
                "nsabench": p.plan.nsabench,
                "matrices": ", ".join(sorted(p.plan.matrices)),
                "cases": p.plan.cases,
                "records": p.records,
                "samples": p.samples,
                "controls_caught": p.controls_caught,
                **p.environment.model_dump(exclude={"commits"}),
                "commit": p.environment.commits.get("nsabench"),
                "kernels_commit": p.environment.commits.get("kernels"),
            }
        )
    return pa.Table.from_pylist(rows)

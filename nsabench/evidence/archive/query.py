"""SQL over an archive, its tables and views of runs and of what pays, through DuckDB."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Timer

import pyarrow as pa

from nsabench.assessment.tables import BURSTS, schema
from nsabench.bounds import limits
from nsabench.bounds.content import size
from nsabench.errors import EnvironmentRefused, UsageError, VerificationFailed
from nsabench.evidence.archive import payments
from nsabench.evidence.archive.archive import READERS, TABLES, Archive, ArchivedRun
from nsabench.evidence.archive.seen import sha256
from nsabench.evidence.archive.store import _INSTALL
from nsabench.machine.environment.pairs import belongs

try:
    import duckdb
except ImportError as error:
    raise EnvironmentRefused("a query needs duckdb, which is not installed", _INSTALL) from error

from nsabench.evidence.archive.question import views_of

MEMORY = 512 * limits.MIB  # of DuckDB; the answer has as much again
PATIENCE_S = 60.0
_BATCH = 10_000
# In this order: what comes last keeps the rest as it is.
_SETTINGS = (
    f"SET memory_limit = '{MEMORY // limits.MIB}MiB'",
    "SET temp_directory = ''",
    "SET autoinstall_known_extensions = false",
    "SET autoload_known_extensions = false",
    "SET allow_community_extensions = false",
    "SET python_enable_replacements = false",
    "SET enable_external_access = false",
    "SET lock_configuration = true",
)


def query(
    archive: Archive,
    sql: str,
    runs: Sequence[ArchivedRun] | None = None,
    *,
    patience_s: float = PATIENCE_S,
) -> pa.Table:
    """The answer. Columns that older runs do not have are null there.

    runs: those that are asked about, of a survey; without, all sound ones. Raises `UsageError` when
    it reads anything but the views, when DuckDB does not accept it, and when it takes too much.
    """
    views = views_of(sql)
    runs = archive.runs() if runs is None else runs
    if not runs and views:
        raise UsageError(f"{archive.store.location} holds no runs", "add one: archive add RUN.")
    with duckdb.connect() as connection, TemporaryDirectory() as scratch:
        interrupt = Timer(patience_s, connection.interrupt)
        try:
            # A view and each question to it read the footer of every file; once is enough.
            connection.execute("SET parquet_metadata_cache = true")
            # Only what the query means is opened: a view reads the schema of every file.
            files = {
                table: _files(archive, runs, table, Path(scratch))
                for table in TABLES
                if table in views
            }
            connection.execute("SET allowed_paths = $1", [[p for f in files.values() for p in f]])
            if "runs" in views:
                connection.register("runs", _runs(runs))
            if "pays" in views:
                own = files.get("records") or _files(archive, runs, "records", Path(scratch))
                connection.register("pays", payments.table(zip(runs, map(Path, own), strict=True)))
            for table, paths in files.items():
                if not paths:  # none of the runs has it
                    connection.register(table, schema(BURSTS).empty_table())
                    continue
                connection.read_parquet(
                    paths, union_by_name=True, hive_partitioning=False
                ).create_view(table)
            for setting in _SETTINGS:
                connection.execute(setting)
            interrupt.start()
            return _answer(connection, sql)
        except duckdb.InterruptException:
            raise UsageError(
                f"the query takes more than {patience_s:g} s", "ask for less."
            ) from None
        except (duckdb.Error, pa.ArrowException) as error:
            sentence = " ".join(str(error).split())[:300]
            raise UsageError(
                f"the query cannot be answered: {sentence}",
                "it may select from runs, records, samples, bursts and pays, in DuckDB's SQL.",
            ) from None
        finally:
            interrupt.cancel()


def _answer(connection: duckdb.DuckDBPyConnection, sql: str) -> pa.Table:
    """Batch by batch: an answer of any size can be asked for in a few words."""
    answer = connection.sql(sql)
    # As it is called from 2.0 on, and before.
    read = getattr(answer, "to_arrow_reader", None) or answer.fetch_arrow_reader
    reader = read(_BATCH)
    batches, taken = [], 0
    for batch in reader:
        taken += batch.nbytes
        if taken > MEMORY:
            raise UsageError(f"the answer has more than {size(MEMORY)}", "ask for less.")
        batches.append(batch)
    return pa.Table.from_batches(batches, reader.schema)


def _files(archive: Archive, runs: Sequence[ArchivedRun], table: str, scratch: Path) -> list[str]:
    """A table of all runs, as files that can be opened in place."""

    def file(run: ArchivedRun) -> str:
        name = run.object(table)
        path = archive.store.as_file(name, scratch, limits.TABLE)
        # A copy is made after the survey, and another object may have been put there since.
        if archive.store.folder is None and sha256(path) != run.digest(table):
            raise VerificationFailed(f"{name} was changed after the signature")
        return str(path)

    with ThreadPoolExecutor(READERS) as pool:
        return list(pool.map(file, (run for run in runs if table in run.tables)))


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
                "samples": p.samples,
                "bursts": p.bursts,
                "controls_caught": p.controls_caught,
                **p.environment.model_dump(exclude={"commits"}),
                "commit": p.environment.commits.get("nsabench"),
                "kernels_commit": p.environment.commits.get("kernels"),
                # Empty for a torch and a Triton that belong together.
                "unpaired": belongs(p.environment.torch, p.environment.triton),
            }
        )
    return pa.Table.from_pylist(rows)

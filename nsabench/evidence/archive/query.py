"""Query the runs of an archive and their tables in SQL, with DuckDB.

DuckDB gets the tables in attached files, which it cannot write. Before the query runs, DuckDB loses
access to other files, extensions and the network, and its configuration is locked.
"""

from collections.abc import Sequence
from threading import Timer

import pyarrow as pa

from nsabench import limits
from nsabench.errors import EnvironmentRefused, UsageError
from nsabench.evidence.archive.archive import Archive
from nsabench.evidence.archive.runs import ArchivedRun, leave_out_shards
from nsabench.evidence.archive.store import INSTALL
from nsabench.evidence.manifest.tables import COLUMNS
from nsabench.machine.environment.pairs import describe_mismatch
from nsabench.reading import size

try:
    import duckdb

    from nsabench.evidence.archive.segments import make_view
except ImportError as error:
    raise EnvironmentRefused("a query needs duckdb, which is not installed", INSTALL) from error

MEMORY = 512 * limits.MIB  # the limit of DuckDB, and also of the answer
PATIENCE_S = 60.0
_BATCH = 10_000
_CONFIGURATION: dict[str, str | bool | int | float | list[str]] = {
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

    Shards of a merged run among them are left out. A column that a run does not have is null for
    that run. Raises `UsageError` without runs, if DuckDB refuses the query, or if the answer takes
    too much time or memory.
    """
    runs = leave_out_shards(archive.runs() if runs is None else runs)
    if not runs:
        raise UsageError(
            f"{archive.store.location} contains no sound run",
            "add one with `nsabench archive add RUN --to ARCHIVE`.",
        )
    with duckdb.connect(config=_CONFIGURATION) as connection:
        interrupt = Timer(patience_s, connection.interrupt)
        try:
            connection.register("runs", _runs(runs))
            for table in COLUMNS:
                if table in sql.lower():  # tables that the query does not name are not copied
                    make_view(connection, archive, table, runs)
            connection.execute("SET enable_external_access = false")
            connection.execute("SET lock_configuration = true")
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
                "write DuckDB's SQL, with the views runs, records, comparisons and samples.",
            ) from None
        finally:
            interrupt.cancel()


def _answer(connection: duckdb.DuckDBPyConnection, sql: str) -> pa.Table:
    answer = connection.sql(sql)
    if answer is None:
        raise UsageError("the query has no answer", "write a SELECT.")
    # Before DuckDB 2.0 the method has another name.
    read = getattr(answer, "to_arrow_reader", None) or answer.fetch_arrow_reader
    reader = read(_BATCH)
    batches, taken = [], 0  # stop at the limit, since a short query can have a huge answer
    for batch in reader:
        taken += batch.nbytes
        if taken > MEMORY:
            raise UsageError(f"the answer has more than {size(MEMORY)}", "ask for less.")
        batches.append(batch)
    return pa.Table.from_batches(batches, reader.schema)


def _runs(runs: Sequence[ArchivedRun]) -> pa.Table:
    rows = []
    for run in runs:
        p = run.predicate
        rows.append(
            {
                "run_id": p.run_id,
                **p.plan.model_dump(include={"created", "nsabench", "device", "shard"}),
                "signed": p.signed,
                "trust": run.trust.value,
                "keyid": p.signer.keyid,
                "matrices": ", ".join(sorted(p.plan.matrices)),
                "cases": p.plan.cases,
                **p.model_dump(include={"records", "comparisons", "samples", "controls_caught"}),
                **p.environment.model_dump(exclude={"commits"}),
                "commit": p.environment.commits.get("nsabench"),
                "kernels_commit": p.environment.commits.get("kernels"),
                # Empty if this torch pins this Triton.
                "unpaired": describe_mismatch(p.environment.torch, p.environment.triton),
            }
        )
    return pa.Table.from_pylist(rows)

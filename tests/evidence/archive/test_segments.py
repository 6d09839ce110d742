"""A query reads copies of tables. The copies hold only tables that verified manifests name."""

import os
import resource
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nsabench.errors import EnvironmentRefused, UsageError, VerificationFailed
from nsabench.evidence.manifest import seal, verify
from tests.runs import SIGNER

pytest.importorskip("obstore")
pytest.importorskip("duckdb")
from nsabench.evidence.archive.query import query
from tests.evidence.archive.test_verified import archive as archive
from tests.evidence.archive.test_verified import folder

RUNS = "SELECT run_id, count(*) AS n FROM records GROUP BY 1 ORDER BY 1"
N = 48  # records of a run


def ask(archive):
    return [row["n"] for row in query(archive, RUNS).to_pylist()]


def copies(tmp_path):
    return sorted((tmp_path / "cache").rglob("records-*.duckdb"))


def test_a_run_that_was_removed_is_in_no_answer(archive, signed, tmp_path):
    _, prefix = archive.add(signed(0))
    archive.add(signed(1))
    assert ask(archive) == [N, N]
    shutil.rmtree(folder(archive) / prefix)
    [row] = query(archive, RUNS).to_pylist()
    assert row["run_id"].endswith("1") and row["n"] == N
    assert len(copies(tmp_path)) == 1, "its rows stay in the copy"
    archive.add(signed(2))
    assert ask(archive) == [N, N]
    assert query(archive, RUNS, archive.runs()[1:]).num_rows == 1, "no row of the first copy"


@pytest.mark.parametrize("content", [b"", b"PAR1"])
def test_a_copy_that_is_damaged_is_made_again(archive, signed, tmp_path, content):
    archive.add(signed(0))
    ask(archive)
    [path] = copies(tmp_path)
    path.write_bytes(content)
    assert ask(archive) == [N]


def test_copies_do_not_become_many(archive, signed, tmp_path):
    """Even if several processes copy the same run, its rows count once."""
    archive.add(signed(0))
    ask(archive)
    [path] = copies(tmp_path)
    for number in range(100):
        shutil.copy(path, path.with_name(f"records-{number}.duckdb"))
    assert ask(archive) == [N]
    assert len(copies(tmp_path)) == 1


def test_without_a_cache(archive, signed, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nothing")
    archive.add(signed(0))
    assert ask(archive) == [N]


def test_a_disk_that_is_full(archive, signed, tmp_path):
    archive.add(signed(0))
    runs = archive.runs()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(EnvironmentRefused) as refused:
            query(archive, RUNS, runs)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "XDG_CACHE_HOME" in refused.value.remedy
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.suffix == ".duckdb"]
    assert ask(archive) == [N]


def test_without_hard_links(archive, signed, tmp_path, monkeypatch):
    """On a file system without hard links, copies would never be read, so none is kept."""

    def refuse(*_, **__):
        raise PermissionError

    archive.add(signed(0))
    monkeypatch.setattr(os, "link", refuse)
    assert ask(archive) == ask(archive) == [N]
    assert copies(tmp_path) == []


def test_what_killed_queries_left(archive, signed, tmp_path):
    archive.add(signed(0))
    ask(archive)
    [path] = copies(tmp_path)
    old, new = path.with_name("tmpold"), path.with_name("tmpnew")
    for left in (old, new):
        left.mkdir()
        shutil.copy(path, left)
    os.utime(old, (0, 0))
    assert ask(archive) == [N]
    assert not old.exists() and new.exists()


def test_a_table_that_was_exchanged_since_it_was_verified(archive, signed):
    archive.add(signed(0))
    runs = archive.runs()
    table = folder(archive) / runs[0].object("records")
    shutil.copy(signed(1) / "records.parquet", table)
    with pytest.raises(VerificationFailed, match="was changed after the signature"):
        query(archive, RUNS, runs)


def test_columns_that_other_versions_call_alike(archive, signed):
    """Columns of one run cannot make the other runs unreadable."""
    columns = {
        "new_column": pa.array([1.5] * N),
        "New_Column": pa.array(["text"] * N),
        "table_sha256": pa.array([7] * N),
        "nested": pa.array([{"x": [1]}] * N),
        "RUNS": pa.array([pa.scalar(1, pa.decimal256(60, 2))] * N),
    }
    for number, (name, column) in enumerate(columns.items()):
        run = signed(number)
        table = pq.read_table(run / "records.parquet")
        for called in dict.fromkeys((name, name.upper())):  # SQL does not tell them apart
            table = table.append_column(called, column)
        pq.write_table(table, run / "records.parquet")
        seal(run, SIGNER)
        archive.add_verified(verify(run, tables=False))
    assert ask(archive) == [N] * len(columns)
    found = query(archive, "SELECT DISTINCT new_column FROM records").column(0).to_pylist()
    assert "1.5" in found and None in found, "null for a run that has no such column"


FILES = """SELECT t.database_name, t.table_name, path FROM duckdb_tables() AS t
           JOIN duckdb_databases() USING (database_name) WHERE path IS NOT NULL -- records"""


def test_a_query_changes_no_copy(archive, signed, tmp_path):
    """Otherwise a query could change the answers of later ones."""
    archive.add(signed(0))
    ask(archive)
    [path] = copies(tmp_path)
    before = path.read_bytes()
    found = query(archive, FILES).to_pylist()
    assert found
    for row in found:
        name = f"{row['database_name']}.{row['table_name']}"
        for change in (f"INSERT INTO {name} FROM {name}", f"DELETE FROM {name}"):
            with pytest.raises(UsageError):
                query(archive, f"{change} -- records")
    assert [path.read_bytes() for path in path.parent.iterdir()] == [before]
    assert ask(archive) == [N]


def test_a_cache_in_a_folder_of_any_name(archive, signed, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache" / "of o'Brien [*]"))
    archive.add(signed(0))
    assert ask(archive) == ask(archive) == [N]
    assert len(copies(tmp_path)) == 1

"""A query reads copies of tables. They hold what verified manifests name, and nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nsabench.errors import VerificationFailed
from nsabench.evidence.manifest import seal, verify
from tests.evidence.archive.conftest import MakeSigned
from tests.runs import SIGNER

pytest.importorskip("obstore")
pytest.importorskip("duckdb")
from nsabench.evidence.archive import Archive
from nsabench.evidence.archive.query import query
from tests.evidence.archive.test_verified import archive as archive
from tests.evidence.archive.test_verified import folder

RUNS = "SELECT run_id, count(*) AS n FROM records GROUP BY 1 ORDER BY 1"
N = 48  # records of a run


def ask(archive: Archive) -> list[int]:
    return [row["n"] for row in query(archive, RUNS).to_pylist()]


def copies(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache").rglob("records-*.parquet"))


def test_a_run_that_came_later_is_in_the_answer(
    archive: Archive, signed: MakeSigned, tmp_path: Path
) -> None:
    for number in range(3):
        archive.add(signed(number))
        assert ask(archive) == [N] * (number + 1)
    assert len(copies(tmp_path)) == 3


def test_a_run_that_was_removed_is_in_no_answer(
    archive: Archive, signed: MakeSigned, tmp_path: Path
) -> None:
    _, prefix = archive.add(signed(0))
    archive.add(signed(1))
    assert ask(archive) == [N, N]
    shutil.rmtree(folder(archive) / prefix)
    [row] = query(archive, RUNS).to_pylist()
    assert row["run_id"].endswith("1") and row["n"] == N
    assert len(copies(tmp_path)) == 1, "its rows are still there"
    archive.add(signed(2))
    assert ask(archive) == [N, N]
    assert query(archive, RUNS, archive.runs()[1:]).num_rows == 1, "none of the first copy"


@pytest.mark.parametrize("content", [b"", b"PAR1"])
def test_a_copy_that_is_damaged_is_made_again(
    archive: Archive, signed: MakeSigned, tmp_path: Path, content: bytes
) -> None:
    archive.add(signed(0))
    ask(archive)
    [path] = copies(tmp_path)
    path.write_bytes(content)
    assert ask(archive) == [N]


def test_copies_do_not_become_many(archive: Archive, signed: MakeSigned, tmp_path: Path) -> None:
    """Two processes may copy the same run. It counts once."""
    archive.add(signed(0))
    ask(archive)
    [path] = copies(tmp_path)
    for number in range(100):
        shutil.copy(path, path.with_name(f"records-{number}.parquet"))
    assert ask(archive) == [N]
    assert len(copies(tmp_path)) == 1


def test_without_a_cache(
    archive: Archive, signed: MakeSigned, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nothing")
    archive.add(signed(0))
    assert ask(archive) == [N]


def test_a_table_that_was_exchanged_since_it_was_verified(
    archive: Archive, signed: MakeSigned
) -> None:
    archive.add(signed(0))
    runs = archive.runs()
    table = folder(archive) / runs[0].object("records")
    shutil.copy(signed(1) / "records.parquet", table)
    with pytest.raises(VerificationFailed, match="was changed after the signature"):
        query(archive, RUNS, runs)


def test_columns_that_other_versions_call_alike(archive: Archive, signed: MakeSigned) -> None:
    """A run cannot keep the others from being asked by what its columns are."""
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
        pq.write_table(table.append_column(name, column), run / "records.parquet")
        seal(run, SIGNER)
        archive.add_verified(verify(run, tables=False))
    assert ask(archive) == [N] * len(columns)
    sql = "SELECT DISTINCT new_column FROM records WHERE new_column IS NOT NULL"
    assert "1.5" in query(archive, sql)["new_column"].to_pylist()

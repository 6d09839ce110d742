"""Tables of a few kilobytes that would take gigabytes to read: refused, or read in parts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nsabench.bounds import OutOfBounds, parquet

READ = """
import sys
from pathlib import Path
from nsabench.bounds import OutOfBounds, parquet
path = Path(sys.argv[1])
try:
    parquet.check(path, 300_000)
    rows = sum(1 for part in parquet.batches(path) for _ in parquet.rows_of(part))
except OutOfBounds as error:
    rows = str(error)
status = Path("/proc/self/status").read_text()  # of rusage, the parent's counts, too
print(int(status.partition("VmHWM:")[2].split()[0]) >> 10)
print(rows)
"""


def read(path: Path) -> tuple[int, str]:
    """In a process of its own: the MiB that it took, and what became of it."""
    done = subprocess.run(
        [sys.executable, "-c", READ, str(path)], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr[-300:]
    taken, said = done.stdout.splitlines()
    return int(taken), said


def distinct(count: int, width: int = 0) -> pa.Array:
    return pa.array([f"{i:06x}".ljust(width, "x") for i in range(count)])


def one_for_all(kind: pa.DataType, rows: int = 60_000) -> pa.Table:
    """A long text that each row has, and the file once."""
    long = pa.array(["x" * (64 << 10)]).cast(kind)
    return pa.table({"x": pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), long)})


def write(path: Path, table: pa.Table, **options: object) -> Path:
    pq.write_table(table, path, compression="zstd", **options)
    return path


def test_long_texts_that_all_differ(tmp_path: Path) -> None:
    """Arrow keeps all of a group's, four times over."""
    table = pa.table({f"c{i}": distinct(200_000, 300) for i in range(5)})
    taken, said = read(write(tmp_path / "t.parquet", table))
    assert said == "has a group of rows with more than 64 MiB of texts"
    assert taken < 700
    taken, said = read(write(tmp_path / "t.parquet", table, row_group_size=40_000))
    assert said == "200000" and taken < 1000


def test_many_texts_that_no_row_has(tmp_path: Path) -> None:
    column = pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), distinct(1_500_000))
    table = pa.table({f"c{i}": column for i in range(20)})
    path = write(tmp_path / "t.parquet", table, dictionary_pagesize_limit=1 << 30)
    taken, said = read(path)
    assert said == "has a group of rows with more than 64 MiB of texts" and taken < 1000


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.binary(), pa.large_string(), pa.large_binary()], ids=str
)
def test_a_long_text_that_each_row_has(tmp_path: Path, kind: pa.DataType) -> None:
    table = one_for_all(kind)
    stored = table.schema if kind == pa.string() else None
    path = write(tmp_path / "t.parquet", table, store_schema=stored is not None)
    taken, said = read(path)
    assert taken < 400 and (said == "60000" or "a column of type" in said)


def test_as_arrow_alone_would_have_it(tmp_path: Path) -> None:
    """What the file says of Arrow's types asks for each row's own."""
    long = pa.table({"x": pa.array(["x" * (64 << 10)] * 200, pa.large_string())})
    with pytest.raises(OutOfBounds, match="has a column of type large_string"):
        parquet.check(write(tmp_path / "t.parquet", long), 200)


@pytest.mark.parametrize("kind", [pa.binary(1000), pa.decimal128(30)], ids=str)
def test_values_of_a_length_of_their_own(tmp_path: Path, kind: pa.DataType) -> None:
    path = write(tmp_path / "t.parquet", pa.table({"x": pa.array([None], kind)}))
    with pytest.raises(OutOfBounds, match="has a column of a kind that no run has"):
        parquet.check(path, 10)

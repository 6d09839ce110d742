"""Files that were made to hang or to crash a reader: refused in one sentence, in bounded memory."""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nsabench.bounds import OutOfBounds, limits, parquet
from nsabench.errors import UsageError
from nsabench.evidence.manifest import verify
from nsabench.evidence.manifest.statement import Trust
from nsabench.planning import matrix
from tests.runs import make_run


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("made") / "run")


def aliases() -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9)]
    return "\n".join(lines)


ZEROS = "0, " * 100_000 + "0"
PLANS = {
    "brackets": ("[" * 200_000, "Invalid JSON: recursion limit exceeded"),
    "braces": ('{"a": ' * 200_000, "Invalid JSON: recursion limit exceeded"),
    "size": (" " * (limits.PLAN + 1), "has more than 64 MiB"),
    "many faults": (f'{{"cases": [{ZEROS}], "matrices": [{ZEROS}]}}', "it has 200"),
}


@pytest.mark.parametrize("name", PLANS)
def test_a_plan(made: Path, tmp_path: Path, name: str) -> None:
    """In a process of its own, which a crash would end, with 4 GB of addresses."""
    run = Path(shutil.copytree(made, tmp_path / "run"))
    text, sentence = PLANS[name]
    (run / "plan.json").write_text(text)
    done = subprocess.run(
        [
            *("prlimit", f"--as={4 << 30}"),
            *(sys.executable, "-m", "nsabench", "verify", str(run), "--require", "unsigned"),
        ],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 4, (done.returncode, done.stderr[-500:])
    assert sentence in done.stderr and "Traceback" not in done.stderr
    assert len(done.stderr) < 2000


def test_a_matrix(tmp_path: Path) -> None:
    path = tmp_path / "matrix.yaml"
    for text, sentence in (
        ("op: " + "[" * 3000, "nested too deeply"),
        (aliases(), "more than 50000 values"),
        ("#" * (limits.MATRIX + 1), "more than 1 MiB"),
        (
            "op: selection_rows\naxes: {N: &n ["
            + ", ".join(map(str, range(1, 200)))
            + "], H: *n, D: *n, L: *n}",
            "spans 1568239201 cases, more than 100000",
        ),
    ):
        path.write_text(text)
        with pytest.raises(UsageError, match=sentence) as refused:
            matrix.load(path)
        assert refused.value.exit_code == 2 and refused.value.remedy


def replaced(run: Path, change: Callable[[pa.Table], pa.Table]) -> str:
    path = run / "samples.parquet"
    pq.write_table(change(pq.read_table(path)), path)
    return str(verify(run, require=Trust.UNSIGNED).broken)


def test_samples_that_the_journal_does_not_hold_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path / "run")
    read: list[int] = []
    really = parquet.batches

    def batches(path: Path, columns: object = None) -> object:
        for part in really(path, columns):  # type: ignore[arg-type]
            read.append(part.num_rows)
            yield part

    monkeypatch.setattr("nsabench.bounds.parquet.batches", batches)
    assert verify(run, require=Trust.UNSIGNED).broken is None
    usual = sum(read)
    read.clear()
    sentence = replaced(run, lambda table: table.take([0] * 3_000_000))
    assert sentence == "samples: samples.parquet: rows is 3000000 and should be 640"
    assert sum(read) <= usual, "no row of it was unpacked"


def test_a_part_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    table = pa.table({"text": ["x" * 1000] * 300_000, "n": range(300_000)})
    pq.write_table(table, path)
    assert parquet.check(path, 300_000).rows == 300_000
    parts = list(parquet.batches(path))
    assert max(part.num_rows for part in parts) <= parquet.BATCH
    assert all(part.nbytes < 2 << 20 for part in parts), "a text is held once a part"
    with pytest.raises(OutOfBounds, match="has 300000 rows, more than 299999"):
        parquet.check(path, 299_999)


def test_a_page_that_unpacks_to_more_than_it_may(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    zeros = pa.table({"t": pa.array([bytes(17 << 20)])})
    pq.write_table(zeros, path, compression="zstd", use_dictionary=False)
    assert path.stat().st_size < 10_000
    with pytest.raises(OutOfBounds, match="a page that unpacks to more than 16 MiB"):
        parquet.check(path, 10)


def test_the_sum_of_many_pages(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    columns = {f"c{i}": pa.array([bytes(15 << 20)]) for i in range(36)}
    pq.write_table(pa.table(columns), path, compression="zstd", use_dictionary=False)
    with pytest.raises(OutOfBounds, match="more than 512 MiB"):
        parquet.check(path, 10)


def nested(depth: int) -> pa.DataType:
    kind = pa.int64()
    for _ in range(depth):
        kind = pa.list_(kind)
    return kind


@pytest.mark.parametrize(
    ("table", "options", "sentence"),
    [
        (pa.table({"x": pa.array([None], nested(50))}), {}, "columns within columns"),
        (pa.table({"x": pa.array([{"a": 1}])}), {}, "columns within columns"),
        (pa.table({f"c{i}": [1] for i in range(1001)}), {}, "more than 1000 columns"),
        (
            pa.table({"x": ["a" * 50] * 9}),
            {"use_dictionary": False, "column_encoding": "DELTA_BYTE_ARRAY"},
            "an encoding that no run is written in",
        ),
    ],
    ids=["lists", "structs", "columns", "encoding"],
)
def test_a_table_that_is_none_of_ours(
    tmp_path: Path, table: pa.Table, options: dict[str, object], sentence: str
) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(table, path, **options)
    with pytest.raises(OutOfBounds, match=sentence):
        parquet.check(path, 10)


def test_a_footer_that_lies(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"x": [1, 2, 3]}), path)
    data = path.read_bytes()
    for length in (0xFFFFFFFF, limits.FOOTER + 1, len(data)):
        path.write_bytes(data[:-8] + struct.pack("<I", length) + b"PAR1")
        with pytest.raises(OutOfBounds, match="has a footer of"):
            parquet.check(path, 10)


def test_texts_that_no_row_has_are_not_unpacked(tmp_path: Path) -> None:
    """A dictionary of millions in each group of rows, for twelve rows.

    How small the file is depends on pyarrow: 26 writes the texts in use, and then what its memory
    held before, up to the size of all.
    """
    path = tmp_path / "t.parquet"
    many = pa.array(["of one", "of another", *[f"{i:02}"[-2:] for i in range(2_000_000)]])
    column = pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 0], pa.int32()), many)
    table = pa.table({"text": column})
    with pq.ParquetWriter(path, table.schema, compression="zstd") as writer:
        for _ in range(3):
            writer.write_table(table)
    footer = pq.read_metadata(path)
    unpacked = sum(footer.row_group(i).total_byte_size for i in range(3))
    assert unpacked > 30_000_000 and parquet.check(path, 12).rows == 12
    texts = [part["text"] for part in parquet.batches(path)]
    assert sum(len(part.dictionary) for part in texts) <= 6
    rows = [row["text"] for part in parquet.batches(path) for row in parquet.rows_of(part)]
    assert rows == ["of one", "of another", None, "of one"] * 3
    assert list(parquet.rows_of(parquet.table(path, 12)))[1] == {"text": "of another"}

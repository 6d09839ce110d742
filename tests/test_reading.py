"""Files that others made are read or refused with an error, whatever they hold."""

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from nsabench import limits, reading
from nsabench.errors import UsageError, VerificationFailed
from nsabench.evidence.manifest.dsse import Envelope
from nsabench.evidence.manifest.statement import Statement
from nsabench.planning import matrix, yaml_document
from nsabench.reading import OutOfBounds
from nsabench.running import log
from nsabench.verdicts.audit.table import read_table
from nsabench.verdicts.tables import batches, check_table

many = settings(
    max_examples=500, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
NOISE = [*map(chr, range(128)), *"é\u202e\ud800\U0001f600"]


def joined(*parts):
    """Return a strategy for files: parts of the format mixed with noise, one part repeated up to
    3,000 times, or random bytes."""
    some = st.lists(st.sampled_from([*parts, *NOISE]), max_size=40).map("".join)
    much = st.tuples(st.sampled_from(parts), st.integers(1, 3000)).map(lambda t: t[0] * t[1])
    return (some | st.tuples(some, much, some).map("".join)).map(
        lambda text: text.encode("utf-8", "surrogatepass")
    ) | st.binary(max_size=200)


YAML = joined(
    *("[", "]", "{", "}", ": ", "- ", "\n", "\n  ", ", ", "&a ", "*a", "? ", "| \n", "'", '"', "#"),
    *("!!int ", "!!python/object:x ", "<<: ", "1:", "0x", "nan", "2026-01-01", "---\n"),
)
JSON = joined("[", "]", "{", "}", ":", ",", '"', '"a"', "0", "-1e999", "NaN", "null", "\\u0000")
CSV = joined(",", "\n", '"', "\r", "N", "L", "triton_ms", "sdpa_ms", "1", "1e400", "nan", "-", "=1")


ONES = f"[{'1, ' * 199}]"


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    return tmp_path_factory.mktemp("made")


@many
@given(data=YAML)
@example(data=b"[" * 200_000)
@example(data=b"- " * 200_000)
@example(data=b"a: &a [*a]")
@example(data=b"a: " + b"1:" * 200_000 + b"1")
@example(data="!!binary \u00e9".encode())
def test_matrices(scratch, data):
    path = scratch / "matrix.yaml"
    path.write_bytes(data)
    try:
        yaml_document.read(path)
    except UsageError as error:
        assert error.remedy and "\n" not in str(error)


@many
@given(data=JSON)
@example(data=b"[" * 200_000)
@example(data=b'{"payload":' * 50_000)
def test_manifests_and_logs(scratch, data):
    for parse in (Envelope.parse, Statement.parse):
        with pytest.raises(VerificationFailed) as failed:
            parse(data)
        assert len(str(failed.value)) < 1000
    path = scratch / "log.jsonl"
    path.write_bytes(data + b"\n")
    with pytest.raises(UsageError, match=r"log\.jsonl"):
        log.read(path)


@many
@given(data=CSV)
@example(data=b"N,triton_ms,sdpa_ms\n" + b"1e400,1,1\n" * 3)
@example(data=b"N,H,D,Dv,L,triton_ms,sdpa_ms\n" + b"9" * 400 + b",1,1,1,1,1,1\n")
@example(data=b"," * 100_000 + b"\n1")
@example(data=b'"' + b"x" * 200_000)
def test_tables_of_timings(scratch, data):
    path = scratch / "table.csv"
    path.write_bytes(data)
    try:
        read_table(path).records()
    except UsageError as error:
        assert error.remedy


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("op: " + "[" * 3000, "nest"),
        ("a: &a [1]\nb: *a", "has an alias in line 2"),
        ("#" * (limits.MATRIX + 1), "has more than 1 MiB"),
        ("a: " + "1:" * 300 + "1", "has a number of 601 characters in line 1"),
        (
            f"op: selection_rows\naxes: {{N: {ONES}, H: {ONES}, D: {ONES}, L: {ONES}}}",
            "spans 1568239201 cases, more than 100000",
        ),
    ],
)
def test_a_matrix_that_takes_too_much(tmp_path, text, sentence):
    (tmp_path / "matrix.yaml").write_text(text)
    with pytest.raises(UsageError, match=sentence):
        matrix.load(tmp_path / "matrix.yaml")


@pytest.mark.parametrize("read", [reading.read, reading.tail])
def test_what_is_no_file_is_not_waited_for(tmp_path, read):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(OutOfBounds, match="a pipe or a device"):
            read(path, 10)


def test_a_table_is_refused_by_its_metadata(tmp_path, monkeypatch):
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({f"c{i}": [0] * 40 for i in range(3)}), path)
    assert check_table(path, 40) == 40
    with pytest.raises(OutOfBounds, match="has 40 rows, more than 39"):
        check_table(path, 39)
    for limit, sentence in (
        ("TABLE", "has more than 2 bytes"),
        ("COLUMNS", "has more than 2 columns"),
        ("UNPACKED", "unpacks to more than"),
    ):
        with monkeypatch.context() as lowered, pytest.raises(OutOfBounds, match=sentence):
            lowered.setattr(limits, limit, 2)
            check_table(path, 40)


def test_a_batch_holds_each_text_once(tmp_path):
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"text": ["x" * 1000] * 300_000, "n": range(300_000)}), path)
    parts = list(batches(path))
    assert sum(part.num_rows for part in parts) == 300_000
    assert all(part.nbytes < 2 << 20 for part in parts)


def test_a_small_file_takes_little_memory_however_large_it_may_be(tmp_path):
    """If each file took memory for the largest allowed file, several tables at once would take too
    much."""
    path = tmp_path / "small"
    path.write_bytes(b"content")
    assert reading.read(path, 1 << 60) == b"content"
    assert reading.read(path, 7) == b"content"
    with pytest.raises(OutOfBounds):
        reading.read(path, 6)

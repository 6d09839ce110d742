"""Two thousand inputs a format: each is read, or refused in a sentence; nothing else happens."""

from __future__ import annotations

import base64
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from nsabench import bounds
from nsabench.assessment.audit import table as csv_table
from nsabench.bounds import OutOfBounds, csv, limits, parquet
from nsabench.bounds import yaml as bounded_yaml
from nsabench.errors import UsageError, VerificationFailed
from nsabench.evidence.manifest.dsse import Envelope
from nsabench.evidence.manifest.statement import Statement
from nsabench.evidence.manifest.verify import signed
from nsabench.execution import journal
from nsabench.planning import yaml_document

many = settings(
    max_examples=2000,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


NOISE = [*map(chr, range(128)), *"é\u202e\ud800\U0001f600"]


def joined(*parts: str) -> st.SearchStrategy[bytes]:
    """Files made of what the format is made of, of noise, and of much of one part.

    A byte picks a part: drawn one by one, the parts would take most of the time.
    """
    picked = [parts[i % len(parts)] if i < 128 else NOISE[i % len(NOISE)] for i in range(256)]
    some = st.binary(max_size=40).map(lambda picks: "".join(picked[i] for i in picks))
    much = st.tuples(st.sampled_from(parts), st.integers(1, 3000)).map(lambda t: t[0] * t[1])
    return (some | st.tuples(some, much, some).map("".join)).map(
        lambda text: text.encode("utf-8", "surrogatepass")
    ) | st.binary(max_size=200)


YAML = joined(
    *("[", "]", "{", "}", ": ", "- ", "\n", "\n  ", ", ", "&a ", "*a", "? ", "| \n", "'", '"', "#"),
    *(
        "!!int ",
        "!!python/object:x ",
        "<<: ",
        "1:",
        "0x",
        "nan",
        "2026-01-01",
        "---\n",
        "%YAML 1.1",
    ),
)
JSON = joined("[", "]", "{", "}", ":", ",", '"', '"a"', "0", "-1e999", "NaN", "null", "\\u0000")
CSV = joined(",", "\n", '"', "\r", "N", "L", "triton_ms", "sdpa_ms", "1", "1e400", "nan", "-", "=1")


@many
@given(YAML)
@example(b"[" * 200_000)
@example(b"- " * 200_000)
@example(b"{a: " * 100_000)
@example(b"1:" * 200_000 + b"1")
def test_yaml(data: bytes) -> None:
    try:
        bounded_yaml.load(data, limits.PLAN, limits.PLAN_NODES)
    except (OutOfBounds, yaml.YAMLError) as error:
        assert str(error)
    try:
        # What this passes can be composed, which recurses.
        bounded_yaml.refuse_unbounded(text := data.decode(), 1000)
        list(yaml.compose_all(text, Loader=yaml.SafeLoader))
    except (OutOfBounds, yaml.YAMLError, UnicodeDecodeError) as error:
        assert str(error)


@many
@given(JSON)
@example(b"[" * 200_000)
@example(b'{"payload":' * 50_000)
def test_json_and_dsse(data: bytes) -> None:
    for parse in (Envelope.parse, Statement.parse):
        with pytest.raises(VerificationFailed) as failed:
            parse(data)
        assert len(str(failed.value)) < 1000


SOUND: dict[str, Any] = {
    "payload": "e30=",
    "payloadType": "application/vnd.in-toto+json",
    "signatures": [{"keyid": "a", "sig": "e30="}],
}


@many
@given(
    st.fixed_dictionaries(
        {
            "payload": st.text(max_size=40)
            | JSON.map(lambda data: base64.b64encode(data).decode()),
            "payloadType": st.sampled_from(["application/vnd.in-toto+json", "text/plain"]),
            "signatures": st.lists(
                st.fixed_dictionaries({"keyid": st.text(max_size=9), "sig": st.text(max_size=9)}),
                max_size=3,
            ),
        }
    )
)
@example(SOUND)
def test_dsse_that_is_nearly_one(envelope: dict[str, Any]) -> None:
    with pytest.raises(VerificationFailed):
        signed(Envelope.parse(json.dumps(envelope).encode()))


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


@many
@given(data=CSV)
@example(data=b"N,triton_ms,sdpa_ms\n" + b"1e400,1,1\n" * 3)
@example(data=b"N,H,D,Dv,L,triton_ms,sdpa_ms\n" + b"9" * 400 + b",1,1,1,1,1,1\n")
@example(data=b"," * 100_000)
@example(data=b'"' + b"x" * 200_000)
def test_csv(scratch: Path, data: bytes) -> None:
    path = scratch / "table.csv"
    path.write_bytes(data)
    for read in (lambda: csv.load(data), lambda: csv_table.read(path).rows()):
        try:
            read()
        except (OutOfBounds, UsageError) as error:
            assert str(error)


@many
@given(data=JSON)
def test_journals(scratch: Path, data: bytes) -> None:
    path = scratch / "journal.jsonl"
    path.write_bytes(data + b"\n")
    with pytest.raises(UsageError, match="journal"):
        journal.read(path)


@settings(parent=many, max_examples=300)
@given(data=YAML)
def test_matrices(scratch: Path, data: bytes) -> None:
    path = scratch / "matrix.yaml"
    path.write_bytes(data)
    try:
        yaml_document.read(path)
    except UsageError as error:
        assert error.remedy


def made() -> bytes:
    buffer = io.BytesIO()
    columns = {"run_id": ["a"] * 40, "n": list(range(40)), "t": [i / 7 for i in range(40)]}
    pq.write_table(pa.table(columns), buffer, row_group_size=10, compression="zstd")
    return buffer.getvalue()


PARQUET = made()


@many
@given(
    changes=st.lists(
        st.tuples(st.integers(0, len(PARQUET) - 1), st.integers(0, 255)), min_size=1, max_size=8
    ),
    cut=st.none() | st.integers(0, len(PARQUET)),
)
@example(changes=[(0, PARQUET[0])], cut=None)
def test_parquet(scratch: Path, changes: list[tuple[int, int]], cut: int | None) -> None:
    """A damaged table is refused or read; what passes is within the bounds it passed."""
    data = bytearray(PARQUET)
    for place, byte in changes:
        data[place] = byte
    path = scratch / "table.parquet"
    path.write_bytes(data[:cut])
    try:
        rows = parquet.check(path, 1000).rows
        assert sum(part.num_rows for part in parquet.batches(path)) <= rows <= 1000
    except (OutOfBounds, OSError, pa.ArrowException) as error:
        assert str(error)


@pytest.mark.parametrize("read", [bounds.read, bounds.tail])
def test_what_is_no_file_is_not_waited_for(tmp_path: Path, read: Callable[..., object]) -> None:

    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OutOfBounds, match="a pipe or a device"):
        read(tmp_path / "pipe", 10)
    with pytest.raises(OutOfBounds, match="a pipe or a device"):
        read(Path("/dev/zero"), 10)

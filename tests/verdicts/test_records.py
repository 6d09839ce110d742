"""Records as records.parquet holds them, written by this version and by later versions."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nsabench import labels
from nsabench.errors import UsageError
from nsabench.model.record import Record
from nsabench.model.vocabulary import NO_SPECIALISED, Catch, Direction, DType, Mode, Role, Status
from nsabench.verdicts.tables import (
    COMPARISONS,
    RECORDS,
    SAMPLES,
    comparisons_table,
    read_records,
    records_table,
    schema,
)
from tests.runs import make_run

# Fields that every record has.
LEAST = {
    "run_id": "r",
    "case_id": "c",
    "op": "selection_rows",
    "implementation": "mine",
    "role": "candidate",
    "direction": "forward",
    "dtype": "bfloat16",
    "device": "cuda",
    "N": 64,
    "H": 8,
    "D": 128,
    "Dv": 128,
    "L": 512,
    "T": None,
    "length": 512,
    "distribution": "dense",
    "status": "ok",
}


def test_what_is_read_is_what_was_written(tmp_path):
    run = make_run(tmp_path / "run")
    records = read_records(run)
    assert records_table(records).equals(pq.read_table(run / "records.parquet"))
    assert comparisons_table(records).equals(pq.read_table(run / "comparisons.parquet"))


def test_unit_and_meaning_stand_in_the_files():
    for columns in (RECORDS, COMPARISONS, SAMPLES):
        for field in schema(columns):
            assert set(field.metadata) == {b"unit", b"meaning"} and field.metadata[b"meaning"]
    times = schema(COMPARISONS).field("median_ms")
    assert (times.type, times.metadata[b"unit"]) == (pa.float64(), b"ms")
    fields = schema(RECORDS)
    assert fields.field("L").metadata[b"meaning"] == b"size L of the op's shape"
    assert fields.names.index("device") < fields.names.index("L") < fields.names.index("length")


def test_a_record_has_the_defaults_of_columns_that_are_missing():
    record = Record.from_row({**LEAST, "caught": None, "reason": None})
    assert record.key == ("c", "mine")
    assert (record.role, record.status) == (Role.CANDIDATE, Status.OK)
    assert (record.dtype, record.direction) == (DType.BFLOAT16, Direction.FORWARD)
    assert (record.verdict, record.caught, record.mode) == (None, None, Mode.STREAM)
    assert (record.reason, record.config, record.median_ms) == ("", "", None)
    assert record.shape == {"N": 64, "H": 8, "D": 128, "Dv": 128, "L": 512}
    assert labels.case_with_id(record) == "selection_rows N64 H8 D128 L512 bf16 [c]"


@pytest.mark.parametrize("text", ["[news](https://evil.example)", "no specialised baseline\n# x"])
def test_a_caution_that_no_version_writes_is_none(text):
    """Pages and Markdown show a caution as their own words."""
    assert Record.from_row({**LEAST, "caution": text}).caution == ""
    assert Record.from_row({**LEAST, "caution": NO_SPECIALISED}).caution == NO_SPECIALISED


def test_a_newer_record_is_read_as_far_as_it_is_known():
    """The record has an op, sizes and columns that this version does not know."""
    newer = {
        **dict.fromkeys(("N", "H", "D", "Dv", "L")),
        "op": "later",
        "n_pages": 64,
        "graph": "replayed",
        "energy_j": 0.5,
        "caught": "missed",
    }
    record = Record.from_row({**LEAST, **newer})
    assert record.shape == {"n_pages": 64}
    assert record.caught is Catch.MISSED
    assert labels.case_with_id(record) == "later n_pages=64 bf16 dense [c]"
    table = records_table([record])
    assert table.column_names[-1] == "n_pages"
    assert Record.from_row(table.to_pylist()[0]) == record


@pytest.mark.parametrize(
    ("table", "change", "sentence"),
    [
        ("records", {"status": "splendid"}, "row that has an unknown status: 'splendid'"),
        ("records", {"op": None}, "row that has no op"),
        ("comparisons", {"verdict": "great"}, "row that has an unknown verdict: 'great'"),
        ("comparisons", {"reference": None}, "row that has no reference"),
    ],
)
def test_what_is_no_row_is_refused(tmp_path, table, change, sentence):
    path = make_run(tmp_path / "run") / f"{table}.parquet"
    written = pq.read_table(path)
    pq.write_table(pa.Table.from_pylist([written.to_pylist()[0] | change], written.schema), path)
    with pytest.raises(UsageError, match=f"{table}.parquet of .* holds a {sentence}"):
        read_records(tmp_path / "run")


def test_text_that_is_not_utf_8_is_refused(tmp_path):
    path = make_run(tmp_path / "run") / "comparisons.parquet"
    table = pq.read_table(path)
    text = pa.array([b"\xff"] * table.num_rows).cast(pa.string(), safe=False)
    pq.write_table(table.set_column(table.schema.get_field_index("reason"), "reason", text), path)
    with pytest.raises(UsageError, match=r"comparisons\.parquet"):
        read_records(path.parent)


@pytest.mark.parametrize(
    ("name", "column"),
    [("records", "mae"), ("records", "op"), ("records", "L"), ("comparisons", "ratio")],
)
def test_a_column_of_another_type_is_named(tmp_path, name, column):
    """This includes columns that a reader could do without: their values would fail later."""
    path = make_run(tmp_path / "run") / f"{name}.parquet"
    table = pq.read_table(path)
    values = pa.array([b"x"] * table.num_rows)
    broken = table.set_column(table.schema.get_field_index(column), column, values)
    pq.write_table(broken, path)
    with pytest.raises(UsageError, match=f"has binary in column {column} and not"):
        read_records(tmp_path / "run")

"""A record that is none is named, in whichever of very many rows it stands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nsabench.assessment.tables import batches, rows_of
from nsabench.errors import VerificationFailed
from nsabench.evidence.manifest import whole_records
from nsabench.model.record import Record

LAST = -1


def part(run: Path, change: Callable[[list[dict[str, Any]]], None]) -> pa.RecordBatch:
    """The records of a run as a reader has them, after a change to their rows."""
    table = pq.read_table(run / "records.parquet")
    rows = table.to_pylist()
    change(rows)
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), run / "records.parquet")
    [found] = batches(run / "records.parquet")
    return found


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"op": None}, "has no op"),
        ({"verdict": "great"}, "has the verdict 'great', which is none"),
        ({"status": "wrong", "reason": ""}, "is wrong without a reason"),
        ({"status": "wrong", "reason": None}, "is wrong without a reason"),
        ({"status": "wrong", "reason": "x", "speedup": 2.0}, "is wrong and yet has a speed-up"),
    ],
)
def test_the_one_record_that_is_none_is_named(
    run: Path, changed: dict[str, Any], said: str
) -> None:
    found = part(run, lambda rows: rows[LAST].update(changed))
    last = list(rows_of(found))[LAST]
    with pytest.raises(VerificationFailed) as refused:
        whole_records.counts(found)
    where = f"records.parquet: {last['implementation']} on {last['case_id']}"
    assert str(refused.value) == f"{where} {said}"


def test_what_is_counted_is_what_each_record_says(run: Path) -> None:
    found = part(run, lambda rows: rows[LAST].update(n_samples=None))
    records = [Record.from_row(row) for row in rows_of(found)]
    expected = {r.key: r.n_samples if r.status == "ok" else None for r in records}
    assert whole_records.counts(found) == expected
    assert {None, 0, 20} >= set(expected.values()) >= {None, 20}


def test_of_records_that_state_the_same_one_is_looked_at(run: Path) -> None:
    found = part(run, lambda rows: rows[LAST].update(triton=None))
    stated = [(r.torch, r.triton) for r in whole_records.differing(found, ("torch", "triton"))]
    assert stated == [("2.11.0", "3.6.0"), ("2.11.0", None)]

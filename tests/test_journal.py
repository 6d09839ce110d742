"""The journal forgives a torn last line, and nothing else."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from nsabench.errors import UsageError
from nsabench.journal import Entry, Journal, read
from nsabench.results import parquet
from nsabench.results.assemble import Results


def entry(case_id: str) -> Entry:
    return Entry(case_id=case_id, outcomes=[])


def written(path: Path, *case_ids: str) -> bytes:
    with closing(Journal(path)) as journal:
        for case_id in case_ids:
            journal.append(entry(case_id))
    return path.read_bytes()


def test_every_torn_end_is_forgiven(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    whole = written(path, "a", "b")
    second = whole.index(b"\n") + 1
    for cut in range(second + 1, len(whole)):
        path.write_bytes(whole[:cut])
        assert [e.case_id for e in read(path).entries] == ["a"]
        with closing(Journal(path)) as journal:
            assert journal.done == {"a"}
            journal.append(entry("b"))
        assert path.read_bytes() == whole


def test_a_broken_line_in_the_middle_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    whole = written(path, "a", "b")
    path.write_bytes(whole.replace(b'"case_id":"a"', b'"case_id":"a'))
    with pytest.raises(UsageError, match=r"journal\.jsonl:1: not a line"):
        read(path)


def test_a_whole_but_foreign_last_line_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(written(path, "a") + b"{}\n")
    with pytest.raises(UsageError, match=":2:"):
        Journal(path)


@pytest.mark.parametrize(
    "nonsense",
    [
        {"escaped_ms": [0.0]},
        {"sm_clock_mhz": [1980] * 3},
        {"round": []},
        {"time_ms": [0.2, 0.0]},
        {"time_ms": [0.2, -0.1]},
        {"time_ms": [0.2, float("inf")]},
        {"time_ms": [0.2, float("nan")]},
    ],
)
def test_samples_that_no_timer_takes_are_no_line(tmp_path: Path, nonsense: dict[str, Any]) -> None:
    samples = {"round": [0, 1], "time_ms": [0.2, 0.3], "escaped_ms": [0.0, 0.0]}
    path = tmp_path / "journal.jsonl"

    def line(samples: dict[str, Any]) -> str:
        outcome = {"implementation": "mine", "status": "ok", "samples": samples}
        return json.dumps({"kind": "case", "case_id": "c", "outcomes": [outcome]}) + "\n"

    path.write_text(line(samples))
    [whole] = read(path).entries
    results = Results([], {("c", "mine"): (0, whole.outcomes[0].samples)}, [], {})
    parquet.write(results, "run", tmp_path)
    written = pq.read_table(tmp_path / "samples.parquet")
    assert written["time_ms"].to_pylist() == [0.2, 0.3]
    assert written["at_s"].to_pylist() == written["sm_clock_mhz"].to_pylist() == [None, None]
    path.write_text(line({**samples, **nonsense}))
    with pytest.raises(UsageError, match="not a line of a run's journal"):
        read(path)

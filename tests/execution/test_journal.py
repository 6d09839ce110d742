"""The journal forgives a torn last line, and nothing else."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from nsabench.assessment import parquet
from nsabench.assessment.results import Results, assemble
from nsabench.errors import UsageError
from nsabench.execution.journal import Journal, lines, read
from nsabench.model.journal import Begun, Entry
from nsabench.model.measurement import Ceilings
from nsabench.model.plan import Plan
from nsabench.model.vocabulary import PassName
from tests.runs import first_look, make_run


def entry(case_id: str) -> Entry:
    return first_look(case_id=case_id, outcomes=[])


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
            assert journal.done(PassName.FIRST_LOOK) == {"a"}
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
        entry = {"kind": "entry", "pass_name": "first_look", "case_id": "c"}
        return json.dumps({**entry, "outcomes": [outcome]}) + "\n"

    path.write_text(line(samples))
    [whole] = read(path).entries
    results = Results([], {("c", "mine"): (0, whole.outcomes[0].samples)}, {}, [], {})
    parquet.write(results, "run", tmp_path)
    written = pq.read_table(tmp_path / "samples.parquet")
    assert written["time_ms"].to_pylist() == [0.2, 0.3]
    assert written["at_s"].to_pylist() == written["sm_clock_mhz"].to_pylist() == [None, None]
    path.write_text(line({**samples, **nonsense}))
    with pytest.raises(UsageError, match="not a line of a run's journal"):
        read(path)


def test_ceilings_of_a_run_that_was_resumed_are_the_best_and_its_timer_the_worst(
    tmp_path: Path,
) -> None:
    first = Ceilings(copy_gb_s=4000.0, tflop_s={"float16": 700.0}, known_duration_error=0.001)
    second = Ceilings(copy_gb_s=3000.0, tflop_s={"float16": 750.0}, known_duration_error=-0.2)
    folder = make_run(tmp_path / "run")
    contents = read(folder / "journal.jsonl")
    [header] = contents.headers
    contents.headers = [
        header.model_copy(update={"ceilings": ceilings}) for ceilings in (first, second)
    ]
    found = contents.ceilings
    assert (found.copy_gb_s, found.tflop_s) == (4000.0, {"float16": 750.0})
    assert found.known_duration_error == -0.2 and found.l2_gb_s is None
    results = assemble(Plan.read(folder / "plan.json"), contents)
    assert [f.sentence for f in results.findings if f.check == "timer"] == [
        "the timer reads a kernel of known duration -20.0% off, over the 2% allowed"
    ]


def begun(names: int) -> Begun:
    return Begun(
        pass_name=PassName.FIRST_LOOK,
        case_id="b",
        implementations=[f"implementation_{n}" for n in range(names)],
    )


@pytest.mark.parametrize("names", [1, 20, 200, 2000])
def test_what_is_begun_gives_way_while_it_is_read(tmp_path: Path, names: int) -> None:
    """A reader has the old line in its buffer, whole or a part of it, when the next is written."""
    path = tmp_path / "journal.jsonl"
    with closing(Journal(path)) as journal:
        journal.append(entry("a"))
        journal.begin_attempt(begun(names))
        reading = lines(path)
        assert next(reading)[1].case_id == "a"
        journal.append(entry("b" * 5 * names))
        journal.append(entry("c"))
        assert [line.case_id for _, line in reading][-2:] == ["b" * 5 * names, "c"]


def test_a_byte_that_looks_like_the_end_of_a_line_cuts_nothing(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    whole = bytearray(written(path, "a", "b", "c"))
    whole[len(whole) // 2] = ord("\r")
    path.write_bytes(whole)
    with pytest.raises(UsageError, match=":2: not a line"):
        Journal(path)
    assert path.read_bytes() == whole

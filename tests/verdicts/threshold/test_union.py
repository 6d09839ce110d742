"""Several runs decide together only where they are of one kernel, and as one run would."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from nsabench.cli.threshold import command
from nsabench.errors import UsageError
from nsabench.verdicts.threshold import as_markdown, decide_all, of_run, of_tables
from nsabench.verdicts.threshold.decide import Decision
from nsabench.verdicts.threshold.document import as_data
from tests.runs import Made, make_run

SHORT, LONG = (64, 128), (256, 512)
# From the third shape on torch no longer compiled it, as seen on an H200.
UNCOMPILED = {64: 0.013, 128: 0.026, 256: 3.09, 512: 4.04}
FAST = Made(ratio=lambda _: 2.0, base_ms=0.02, flex_ms=UNCOMPILED.__getitem__)
MINE, OTHERS = "mine.py@aaaaaaaaaaaa", "mine.py@bbbbbbbbbbbb"


def runs(tmp_path: Path, *made: Made) -> list[Path]:
    return [
        make_run(tmp_path / str(i), replace(one, run_id=f"run-{i}")) for i, one in enumerate(made)
    ]


def decide(folders: Sequence[Path]) -> list[Decision]:
    return decide_all([of_run(folder) for folder in folders])


def of_lengths(made: Made, *lengths: tuple[int, ...]) -> list[Made]:
    return [replace(made, lengths=some) for some in lengths]


def test_a_cliff_between_two_runs_leaves_its_cases_open(tmp_path: Path) -> None:
    short, long = runs(tmp_path, *of_lengths(FAST, SHORT, LONG))
    assert [d.min_length for d in decide([short]) + decide([long])] == [64, 256]
    [whole] = decide(runs(tmp_path / "whole", FAST))
    [together] = decide([short, long])
    assert (whole.min_length, together.min_length) == (None, None)
    assert together.decided_by is not None and whole.decided_by is not None
    assert together.decided_by.comparison.verdict is whole.decided_by.comparison.verdict
    [reason] = together.reasons
    assert "is inconclusive" in reason and "looks like another program" in reason
    assert "looks like another program" in as_markdown([together]).rstrip().splitlines()[-1]
    [document] = as_data([together])["decisions"]
    assert "flex_attention takes" in document["decided_by"]["why"]
    [reversed_] = decide([long, short])
    assert reversed_.min_length is None


@pytest.mark.parametrize(
    "other", [{"gpu": "NVIDIA L4"}, {"torch": "2.12.1"}, {"sources": {"x": "b" * 64}}]
)
def test_what_lies_on_another_machine_or_is_of_other_code_makes_no_ladder(
    tmp_path: Path, other: dict[str, str]
) -> None:
    made = replace(FAST, source=MINE, sources={"x": "a" * 64})
    short, long = of_lengths(made, SHORT, LONG)
    decisions = decide(runs(tmp_path, short, replace(long, **other)))
    assert {d.min_length for d in decisions} <= {64, 256}


def test_a_time_that_stays_flat_from_one_run_to_the_next_is_impossible(tmp_path: Path) -> None:
    """1.5 GB at 4.8 TB/s take 0.3 ms; each run alone has one length and finds nothing."""
    shapes = ((8192, 8, 128), (8192, 4, 64))
    flat = Made(shapes=shapes, base_ms=0.001, noise=0.0005)
    flat = replace(flat, ratio=lambda length: length / 64 * 0.001 / 0.1)
    short, long = runs(tmp_path, *of_lengths(flat, (64,), (2048,)))
    alone = of_run(long)
    statuses = {t.record.status for t in alone.tested}
    [together] = decide([short, long])
    assert statuses == {"ok"}
    assert together.decided_by is not None
    assert together.decided_by.record.status == "implausible"
    assert "time is flat while work grows" in together.reasons[0]


def test_an_advantage_that_ends_in_another_run_is_said(tmp_path: Path) -> None:
    made = Made(ratio=lambda length: 2.0 if length < 256 else 0.5)
    [decision] = decide(runs(tmp_path, *of_lengths(made, SHORT, LONG)))
    assert len(decision.notes) == 4
    assert "mine: 2.00 times as fast as the baseline at L=64 but 0.50 at L=256" in decision.notes[0]
    assert as_data([decision])["decisions"][0]["notes"] == decision.notes
    assert decision.notes[0] in as_markdown([decision])


def test_what_is_said_of_one_candidate_is_not_said_of_another(tmp_path: Path) -> None:
    made = Made(ratio=lambda length: 2.0 if length < 256 else 0.5)
    two = [replace(one, implementations=("mine", "yours")) for one in of_lengths(made, SHORT, LONG)]
    decisions = decide(runs(tmp_path, *two))
    assert [{note.partition(":")[0] for note in d.notes} for d in decisions] == [
        {"mine"},
        {"yours"},
    ]


def test_the_same_run_twice_decides_as_once(tmp_path: Path) -> None:
    [run] = runs(tmp_path, Made())
    [once], [twice] = decide([run]), decide([run, run])
    assert (once.min_length, twice.min_length, twice.notes) == (256, 256, [])


def test_two_kernels_of_one_name_are_not_decided_together(tmp_path: Path) -> None:
    one, other = of_lengths(Made(ratio=lambda _: 2.0, source=MINE), (64,), (512,))
    assert [d.min_length for d in decide(runs(tmp_path / "one", one, other))] == [64]
    folders = runs(tmp_path / "two", one, replace(other, source=OTHERS))
    assert [d.min_length for folder in folders for d in decide([folder])] == [None, None]
    done = CliRunner().invoke(command, [str(folder) for folder in folders])
    assert isinstance(done.exception, UsageError), done.output
    assert MINE in str(done.exception) and OTHERS in str(done.exception)
    assert "run-0" in str(done.exception) and "run-1" in str(done.exception)
    assert "give the runs of one source alone" in done.exception.remedy


def test_a_package_that_has_changed_is_another_kernel(tmp_path: Path) -> None:
    made = Made(source="kernels")
    one, same, other = (
        replace(made, sources={"kernels": digit * 64, "x": "0" * 64}) for digit in "aab"
    )
    assert [d.min_length for d in decide(runs(tmp_path / "one", one, same))] == [256]
    with pytest.raises(UsageError, match="mine of selection_rows is not one kernel") as refused:
        decide(runs(tmp_path / "two", one, other))
    assert "kernels@aaaaaaaaaaaa" in str(refused.value)


def test_a_file_under_another_name_is_the_same_kernel(tmp_path: Path) -> None:
    one = Made(source=MINE)
    other = replace(one, source=MINE.replace("mine.py", "copy.py"))
    assert [d.min_length for d in decide(runs(tmp_path, one, other))] == [256]


def test_a_baseline_may_have_changed(tmp_path: Path) -> None:
    """Its times are held against the candidate's of the same run."""
    made = Made(source=MINE)
    one, other = (replace(made, sources={"x": digit * 64}) for digit in "ab")
    assert [d.min_length for d in decide(runs(tmp_path, one, other))] == [256]


def test_the_document_of_two_runs_can_be_read_by_a_program(tmp_path: Path) -> None:
    folders = runs(tmp_path, *of_lengths(FAST, SHORT, LONG))
    done = CliRunner().invoke(command, [*map(str, folders), "--json"])
    assert json.loads(done.stdout)["runtime"]["sel_triton_min_L"] == {"NVIDIA H200": None}


def table(folder: Path, name: str, *lengths: int) -> Path:
    """Honest times of one kernel, at twice the speed of its baseline."""
    lines = [
        f"1024,{h},{d},{n},{n * h * d * 1e-6},{2 * n * h * d * 1e-6}"
        for h in (4, 8)
        for d in (64, 128)
        for n in lengths
    ]
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("N,H,D,L,mine_ms,sdpa_ms\n" + "\n".join(lines))
    return path


@pytest.mark.parametrize("other", ["u.csv", "elsewhere/t.csv"])
def test_tables_do_not_say_that_they_are_of_one_kernel(tmp_path: Path, other: str) -> None:
    one, two = table(tmp_path, "t.csv", 64, 256), table(tmp_path, other, 1024, 4096)
    [alone] = decide_all([of_tables([one], "H200")])
    assert (alone.min_length, alone.caveats) == (64, [])
    [decision] = decide_all([of_tables([one, two], "H200")])
    assert (decision.min_length, decision.tested) == (64, 16)
    names = ("t.csv", "u.csv") if other == "u.csv" else (str(two), str(one))
    [caveat] = decision.caveats
    assert caveat == (
        f"mine is taken for one kernel in {names[0]} and {names[1]}: nothing says what code was "
        f"measured in {names[0]} and {names[1]}"
    )
    assert as_data([decision])["decisions"][0]["caveats"] == [caveat]


def test_a_table_does_not_say_that_it_is_of_the_kernel_of_a_run(tmp_path: Path) -> None:
    [run] = runs(tmp_path, Made(source=MINE))
    given = [of_tables([table(tmp_path, "t.csv", 64, 256)], "H200"), of_run(run)]
    for decision in decide_all(given):
        caveat = decision.caveats[-1]
        assert caveat == (
            "mine is taken for one kernel in run-0 and t.csv: nothing says what code was measured "
            "in t.csv"
        )

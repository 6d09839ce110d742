"""`nsabench compare` as CI uses it."""

import json
from dataclasses import replace

import pytest

from nsabench.model.vocabulary import Status
from tests.commands import nsabench as nsabench
from tests.output.compare.test_comparison import NEWER, STEADY, busy_at
from tests.runs import make_run

SLOWER = replace(NEWER, ratio=lambda _: 1.0)
CRASHED = replace(NEWER, status=lambda n: Status.CRASHED if n == 64 else Status.OK)


@pytest.mark.parametrize(
    ("after", "gate", "code"),
    [
        (NEWER, "regression", 0),
        (SLOWER, None, 0),
        (SLOWER, "status", 0),
        (SLOWER, "regression", 1),
        (CRASHED, "status", 1),
    ],
)
def test_the_gate(tmp_path, nsabench, after, gate, code):
    runs = [make_run(tmp_path / "before", STEADY), make_run(tmp_path / "after", after)]
    done = nsabench("compare", *runs, *(["--fail-on", gate] if gate else []))
    assert done.returncode == code, done.stdout + done.stderr
    assert ("failed: " in done.stderr) == bool(code)
    assert "after against before" in done.stdout


def test_names_are_whole_in_80_columns(tmp_path, nsabench):
    name = "sdpa_heads_as_queries_efficient"
    before = replace(STEADY, implementations=(name,))
    after = replace(before, run_id=NEWER.run_id)
    runs = [make_run(tmp_path / "before", before), make_run(tmp_path / "after", after)]
    table = nsabench("compare", *runs, COLUMNS="80").stdout.partition("after against before: ")[2]
    lines = table.splitlines()
    assert lines[0].split() == ["selection_rows"]
    assert any(name in line and "candidate" in line for line in lines)
    assert max(map(len, lines)) <= 80


def test_a_gate_says_what_it_could_not_go_by(tmp_path, nsabench):
    runs = [make_run(tmp_path / "before", STEADY), make_run(tmp_path / "after", busy_at(512))]
    done = nsabench("compare", *runs, "--fail-on", "regression")
    assert done.returncode == 0, done.stderr
    assert "undecided: 4 cells in after, such as mine on selection_rows" in done.stderr
    assert "2 other processes computed on the device" in done.stderr


def test_its_forms(tmp_path, nsabench):
    runs = [make_run(tmp_path / "before", STEADY), make_run(tmp_path / "after", CRASHED)]
    data = json.loads(nsabench("compare", *runs, "--json").stdout)
    assert sum(cell["later"][0]["change"] == "broke" for cell in data["cells"]) == 4
    text = nsabench("compare", *runs, "--markdown").stdout
    assert text.startswith("# Comparison with before\n")
    shown = nsabench("compare", *runs).stdout
    assert shown.index("Statuses that changed") < shown.index("Candidates against")
    assert nsabench("compare", *runs, "--json", "--markdown").returncode == 2


def test_a_gate_for_the_cases_of_one_model(tmp_path, nsabench):
    """The gate ignores slower cases outside its filter and cases that only one of the runs has."""
    slower = replace(NEWER, ratio=lambda n: 1.0 if n < 256 else 1.5, lengths=(64, 256, 512, 2048))
    runs = [make_run(tmp_path / "before", STEADY), make_run(tmp_path / "after", slower)]
    gate = ("compare", *runs, "--fail-on", "regression")
    done = nsabench(*gate)
    assert done.returncode == 2 and "different plans" in done.stderr
    assert nsabench(*gate, "--intersection").returncode == 1
    done = nsabench(*gate, "--where", "L>=256 and L<=512", "--json")
    assert done.returncode == 0, done.stderr
    cases = [cell["case"] for cell in json.loads(done.stdout)["cells"]]
    assert {case.split(" L")[1].split()[0] for case in cases} == {"256", "512"}
    done = nsabench(*gate, "--where", "L=3")
    assert done.returncode == 2 and "none of the" in done.stderr

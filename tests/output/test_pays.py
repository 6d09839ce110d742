"""From which length on an op pays, wherever a reader meets it: the same in all places."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from nsabench.assessment import pays
from nsabench.assessment.tables import read_records
from nsabench.cli.all import command as measure
from nsabench.cli.threshold import command as ask
from nsabench.model.vocabulary import Direction, Role, Status
from nsabench.output.report import payment_chart
from tests.assessment.pays.test_pays import SHAPE, ladder, record

MATRIX = """
op: nsa_attention
axes: {dtype: float32, T: [40, 80], B: 1, HQ: 4, H: 2, D: 16, block: 8, stride: 4, block_size: 16,
       n_selected: 4, window: 9}
implementations: {only: [torch_nsa, dense_sdpa_math]}
timing: {warmup_s: 0.005, stopping: {kind: fixed_count, rounds: 8}}
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run with an alternative, on this CPU, and what the terminal said of it."""
    folder = tmp_path_factory.mktemp("pays")
    (folder / "m.yaml").write_text(MATRIX)
    arguments = [str(folder / "m.yaml"), "--device", "cpu", "--out", str(folder / "run")]
    done = CliRunner().invoke(measure, arguments)
    assert done.exit_code in (0, 1), done.output
    return folder / "run", done.output


def test_an_alternative_is_held_to_its_own_op_and_is_no_baseline(run: tuple[Path, str]) -> None:
    records = read_records(run[0])
    dense = [r for r in records if r.role is Role.ALTERNATIVE]
    assert [(r.implementation, r.computes, r.status) for r in dense] == [
        ("dense_sdpa_math", "causal_attention", Status.OK)
    ] * 2
    whole = [r for r in records if r.implementation == "torch_nsa"]
    assert {r.best_alternative for r in whole} == {"dense_sdpa_math"}
    assert not any(r.best_baseline == "dense_sdpa_math" for r in records)
    assert all(0 < r.flops != dense[0].flops for r in whole)
    assert all(r.rows_compared == r.length * 4 and r.rows_left_out == 0 for r in whole)


def test_every_place_says_the_same(run: tuple[Path, str]) -> None:
    folder, terminal = run
    [decided] = pays.decide(read_records(folder))
    [line] = [one for one in terminal.splitlines() if "nsa_attention pays (device)" in one]
    assert "4/2 forward" in line
    [stored] = yaml.safe_load((folder / "thresholds.yaml").read_text())["pays"]
    assert (stored["answer"], stored["from"]) == (str(decided.answer), decided.length)
    page = (folder / "report.html").read_text()
    assert page.index(decided.sentence) < page.index('class="cards"')
    assert re.search(r'<section id="pays".*<polyline', page, re.S)
    assert decided.sentence in (folder / "selection_report.md").read_text()


def test_the_parts_stand_beside_the_whole_and_the_crossing_is_marked() -> None:
    rows = []
    for r in ladder({4096: 0.5, 16384: 2.0}):
        whole = r.role is Role.CANDIDATE
        times = {4096: (2.0, 1.0), 16384: (4.0, 8.0)}[r.length]
        rows.append(replace(r, median_ms=times[0] if whole else times[1]))
    for length in (4096, 16384):
        part = {"op": "sliding_window", "shape": {**SHAPE, "T": length}, "median_ms": length / 1e4}
        rows.append(record(length, "band", Role.CANDIDATE, **part))
        for other in ({"HQ": 8}, {"window": 64}):
            shape = {**SHAPE, "T": length, **other}
            rows.append(record(length, "band", Role.CANDIDATE, **{**part, "shape": shape}))
        blocks = {**part, "op": "selection_blocks", "distribution": "scored", "median_ms": 0.5}
        blocks["shape"] = {**SHAPE, "T": length, "S": 16}
        rows.append(record(length, "blocks", Role.CANDIDATE, **blocks))
        more = {"shape": {**blocks["shape"], "S": 32}, "median_ms": 0.1}
        rows.append(record(length, "blocks", Role.CANDIDATE, **(blocks | more)))
        backward = part | {"direction": Direction.BACKWARD, "median_ms": 1e-3}
        rows.append(record(length, "band", Role.CANDIDATE, **backward))
    [decided] = pays.decide(rows)
    assert {line.name: line.points for line in payment_chart.lines(decided, rows)} == {
        "nsa_attention": ((4096, 2.0), (16384, 4.0)),
        "best alternative": ((4096, 1.0), (16384, 8.0)),
        "chosen blocks": ((4096, 0.5), (16384, 0.5)),
        "window": ((4096, 0.4096), (16384, 1.6384)),
    }
    [chart] = payment_chart.charts([decided], rows)
    assert [crossing["text"] for crossing in chart["crossings"]] == ["T = 8,192"]
    assert [tick["text"] for tick in chart["ticks_x"]] == ["4K", "16K"]
    names = [line["name_at"] for line in chart["lines"]]
    assert all(b - a >= 14 for a, b in pairwise(names))


def test_one_length_makes_no_chart() -> None:
    rows = ladder({4096: 0.5})
    assert payment_chart.charts(pays.decide(rows), rows) == []


def test_the_command_says_it_to_programs_too(run: tuple[Path, str]) -> None:
    folder, _ = run
    asked = CliRunner().invoke(ask, [str(folder)])
    assert asked.exit_code == 0, asked.output
    assert "`nsa_attention` 4/2 forward" in asked.output
    data = json.loads(CliRunner().invoke(ask, [str(folder), "--json"]).output)
    assert [(p["op"], p["heads"]) for p in data["pays"]] == [("nsa_attention", "4/2")]

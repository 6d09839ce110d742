"""All outputs agree from which length an op pays."""

import json
import re

import pytest
import yaml

from nsabench.model.vocabulary import Regime, Role
from nsabench.output.report import payment_chart
from nsabench.verdicts import break_even
from nsabench.verdicts.tables import read_records
from tests.commands import invoke
from tests.runs import with_comparison
from tests.verdicts.test_break_even import ladder, queued

MATRIX = """
op: nsa_attention
axes: {dtype: float32, T: [40, 80], B: 1, HQ: 4, H: 2, D: 16, block: 8, stride: 4, block_size: 16,
       n_selected: 4, window: 9}
implementations: {only: [torch_nsa, dense_sdpa_math]}
timing: {warmup_s: 0.005, stopping: {kind: fixed_count, rounds: 8}}
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Measure an op and an alternative on this CPU. Return the run and the terminal's output."""
    folder = tmp_path_factory.mktemp("pays")
    (folder / "m.yaml").write_text(MATRIX)
    words = ("--device", "cpu", "--timing", "full", "--out", folder / "run")
    done = invoke("all", folder / "m.yaml", *words)
    assert done.error is None, done
    return folder / "run", done.stdout


def test_every_place_says_the_same(run):
    folder, terminal = run
    in_queue, on_device = decided = break_even.decide(read_records(folder))
    assert (in_queue.regime, on_device.regime) == (Regime.QUEUE, Regime.DEVICE)
    said = " ".join(terminal.split())
    assert "nsa_attention pays from Python (queue): 4/2 forward" in said
    assert "nsa_attention pays by its kernels alone (device): 4/2 forward" in said
    stored = yaml.safe_load((folder / "thresholds.yaml").read_text())["pays"]
    assert [(s["regime"], s["answer"], s["from"]) for s in stored] == [
        (str(d.regime), str(d.answer), d.length) for d in decided
    ]
    page = (folder / "report.html").read_text()
    first = page[page.index('class="answer"') : page.index('id="failed"')]
    assert first.index("pays from Python") < first.index("pays by its kernels alone")
    assert re.search(r'<section id="pays".*from Python, in ms over T.*<svg', page, re.S)
    text = (folder / "selection_report.md").read_text()
    assert all(d.summary.split(":")[0] in text for d in decided)


def test_both_are_drawn():
    rows = []
    for r in ladder({4096: 0.5, 16384: 2.0}):
        times = {4096: (2.0, 1.0), 16384: (4.0, 8.0)}[r.length]
        rows.append(with_comparison(r, median_ms=times[r.role is not Role.CANDIDATE]))
    [chart] = payment_chart.charts(break_even.decide(rows), rows)
    assert chart.lines == {
        "nsa_attention": ((4096, 2.0), (16384, 4.0)),
        "best alternative": ((4096, 1.0), (16384, 8.0)),
    }
    drawn = chart.draw()
    assert "<title>best alternative, 4096: 1 ms</title>" in drawn


def test_a_chart_of_the_queue_is_of_calls_that_are_queued():
    rows = [
        with_comparison(
            r, Regime.QUEUE, median_ms=r.length / 1e3 if r.role is Role.CANDIDATE else 6.0
        )
        for r in queued(ladder({4096: 2.0, 8192: 2.0}), {4096: 1.5, 8192: 0.75})
    ]
    in_queue, on_device = payment_chart.charts(break_even.decide(rows), rows)
    one_length = ladder({4096: 0.5})
    assert payment_chart.charts(break_even.decide(one_length), one_length) == []
    whole, dense = in_queue.lines.values()
    assert whole == ((4096, 4.096), (8192, 8.192)) and dense[0] == (4096, 6.0)
    assert next(iter(on_device.lines.values())) == ((4096, 1.0), (8192, 1.0))
    assert "a call from Python" in in_queue.caption
    assert "a call by its kernels alone" in on_device.caption


def test_the_command_says_it_to_programs_too(run):
    folder, _ = run
    assert "nsa_attention 4/2 forward" in invoke("threshold", folder).stdout
    data = json.loads(invoke("threshold", folder, "--json").stdout)
    assert [(p["op"], p["heads"], p["regime"]) for p in data["pays"]] == [
        ("nsa_attention", "4/2", "queue"),
        ("nsa_attention", "4/2", "device"),
    ]

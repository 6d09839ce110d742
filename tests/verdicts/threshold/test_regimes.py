"""Decisions in each regime, from the regime's own verdicts."""

from dataclasses import replace

import yaml

from nsabench.model.vocabulary import Mode, Regime, Role, Status, ThresholdAnswer, Verdict
from nsabench.output.report import Facts
from nsabench.verdicts.tables import read_records
from nsabench.verdicts.threshold import decide_run, read_run
from nsabench.verdicts.thresholds_yaml import as_text, as_yaml
from tests.runs import Made, make_run, retimed

# The candidate is faster from 128 keys on the device, and from 512 keys if called from Python.
BOTH = Made(
    lengths=(64, 128, 256, 512, 1024),
    ratio=lambda n: 0.9 if n < 128 else 1.5,
    queue_ratio=lambda n: 0.4 if n < 512 else 1.4,
)


def decide(folder, made=BOTH):
    decisions = decide_run(*read_run(make_run(folder, made)))
    assert len({d.regime for d in decisions}) == len(decisions)
    return {d.regime: d for d in decisions}


def test_each_regime_has_a_threshold_of_its_own(tmp_path):
    decisions = decide(tmp_path / "run")
    assert {r: d.min_length for r, d in decisions.items()} == {
        Regime.DEVICE: 128,
        Regime.QUEUE: 512,
    }
    by = decisions[Regime.QUEUE].decided_by
    assert by is not None and by.length == 256
    text = as_text(list(decisions.values()))
    assert all(f"{regime}: worth using" in text for regime in decisions)
    document = yaml.safe_load(as_yaml(list(decisions.values())))
    device, queue = {"NVIDIA H200": 128}, {"NVIDIA H200": 512}
    assert document["runtime"] == {
        "sel_triton_min_L": device,
        "sel_triton_min_L_by_regime": {"device": device, "queue": queue},
    }
    found = [(d["regime"], d["min_L"]) for d in document["decisions"]]
    assert found == [("device", 128), ("queue", 512)]


def test_a_failure_at_the_greatest_length_decides_in_both(tmp_path):
    made = Made(
        queue_ratio=lambda _: 2.0,
        ratio=lambda _: 2.0,
        status=lambda n: Status.CRASHED if n == 512 else Status.OK,
    )
    # Where a candidate crashed on every case of a length, the baseline's bursts are still there.
    for decision in decide(tmp_path / "run", made).values():
        assert decision.min_length is None


def test_a_greatest_length_without_queued_calls_leaves_the_queue_open(tmp_path):
    records, plan = read_run(make_run(tmp_path / "run", BOTH))
    cut = [
        replace(r, comparisons=(r.comparison(Regime.DEVICE),)) if r.length == 1024 else r
        for r in records
    ]
    lengths = {d.regime: d.min_length for d in decide_run(cut, plan)}
    assert lengths == {Regime.DEVICE: 128, Regime.QUEUE: None}


def test_where_a_control_of_the_queue_gets_away_the_queue_decides_nothing(tmp_path):
    decisions = decide(tmp_path / "run", replace(BOTH, queue_caught=False))
    assert decisions[Regime.DEVICE].answer is ThresholdAnswer.FROM
    assert decisions[Regime.QUEUE].answer is ThresholdAnswer.NOT_DECIDED
    assert "controls were not caught: needless_python" in decisions[Regime.QUEUE].reasons
    facts = Facts.read(tmp_path / "run")
    assert not facts.invalidating and "in the regime queue" in facts.undecided[0].sentence
    mine = facts.candidates
    queue = [r.compared(Regime.QUEUE) for r in mine]
    assert {c.verdict for c in queue if c} == {Verdict.INVALID} and all(queue)
    assert {r.verdict for r in mine} == {Verdict.FASTER, Verdict.SLOWER}


def test_graphs_decide_for_graphs(tmp_path):
    def in_graphs(plan):
        return plan.model_copy(update={"cases": [retimed(p, mode=Mode.GRAPH) for p in plan.cases]})

    run = make_run(tmp_path / "run", BOTH, change=in_graphs)
    mine = [r for r in read_records(run) if r.role is Role.CANDIDATE]
    assert {c.regime for r in mine for c in r.comparisons if c.verdict} == {Regime.GRAPH}
    [decision] = decide_run(*read_run(run))
    assert (decision.regime, decision.min_length) == (Regime.GRAPH, 128)
    runtime = yaml.safe_load(as_yaml([decision]))["runtime"]
    assert runtime["sel_triton_min_L_by_regime"] == {"graph": {"NVIDIA H200": 128}}

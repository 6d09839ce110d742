"""Decisions in each regime: from its own verdicts, held apart in what a gate loads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from nsabench.model.case import Case
from nsabench.model.plan import Plan
from nsabench.model.vocabulary import Answer, Mode, Regime, Status, Verdict
from nsabench.output.report import Facts, write_html, write_markdown
from nsabench.running.folder import RunFolder
from nsabench.verdicts.tables import read_records
from nsabench.verdicts.threshold import Decision, decide_run, read_run
from nsabench.verdicts.thresholds_yaml import as_text, as_yaml
from tests.runs import Made, make_run

# On the device from 128 keys on; from Python, where the host is what is awaited, from 512 on.
BOTH = Made(
    lengths=(64, 128, 256, 512, 1024),
    ratio=lambda n: 0.9 if n < 128 else 1.5,
    queue_ratio=lambda n: 0.4 if n < 512 else 1.4,
)


def decide(folder: Path, made: Made = BOTH) -> dict[Regime, Decision]:
    decisions = decide_run(*read_run(make_run(folder, made)))
    assert len({d.regime for d in decisions}) == len(decisions)
    return {d.regime: d for d in decisions}


def test_each_regime_has_a_threshold_of_its_own(tmp_path: Path) -> None:
    decisions = decide(tmp_path / "run")
    assert {r: d.min_length for r, d in decisions.items()} == {
        Regime.DEVICE: 128,
        Regime.QUEUE: 512,
    }
    assert decisions[Regime.QUEUE].summary == "queue: worth using from L = 512 on"
    assert decisions[Regime.QUEUE].decided_by is not None
    assert decisions[Regime.QUEUE].decided_by.length == 256


def test_what_a_gate_loads_holds_them_apart(tmp_path: Path) -> None:
    document = yaml.safe_load(as_yaml(list(decide(tmp_path / "run").values())))
    assert document["runtime"] == {
        "sel_triton_min_L": {"NVIDIA H200": 128},
        "sel_triton_min_L_by_regime": {
            "device": {"NVIDIA H200": 128},
            "queue": {"NVIDIA H200": 512},
        },
    }
    assert [(d["regime"], d["min_L"]) for d in document["decisions"]] == [
        ("device", 128),
        ("queue", 512),
    ]


def test_never_in_the_queue_leaves_the_device_as_it_is(tmp_path: Path) -> None:
    made = Made(ratio=lambda _: 2.0, queue_ratio=lambda _: 0.3)
    decisions = decide(tmp_path / "run", made)
    assert decisions[Regime.DEVICE].answer is Answer.FROM
    assert decisions[Regime.QUEUE].answer is Answer.NO
    runtime = yaml.safe_load(as_yaml(list(decisions.values())))["runtime"]
    assert runtime["sel_triton_min_L_by_regime"]["queue"] == {"NVIDIA H200": None}


def test_a_run_without_bursts_decides_on_the_device_alone(tmp_path: Path) -> None:
    assert set(decide(tmp_path / "run", Made())) == {Regime.DEVICE}


def test_a_failure_at_the_greatest_length_decides_in_both(tmp_path: Path) -> None:
    made = Made(
        queue_ratio=lambda _: 2.0,
        ratio=lambda _: 2.0,
        status=lambda n: Status.CRASHED if n == 512 else Status.OK,
    )
    # Where a candidate crashed on every case of a length, the baseline's bursts are still there.
    for decision in decide(tmp_path / "run", made).values():
        assert decision.min_length is None


def test_where_a_control_of_the_queue_gets_away_the_queue_decides_nothing(tmp_path: Path) -> None:
    decisions = decide(tmp_path / "run", replace(BOTH, queue_caught=False))
    assert decisions[Regime.DEVICE].answer is Answer.FROM
    assert decisions[Regime.QUEUE].answer is Answer.NOT_DECIDED
    assert "controls were not caught: needless_python" in decisions[Regime.QUEUE].reasons
    facts = Facts.read(tmp_path / "run")
    assert not facts.invalidating and "in the regime queue" in facts.undecided[0].sentence
    mine = facts.candidates
    queue = [r.compared(Regime.QUEUE) for r in mine]
    assert {c.verdict for c in queue if c} == {Verdict.INVALID} and all(queue)
    assert {r.verdict for r in mine} == {Verdict.FASTER, Verdict.SLOWER}


def test_without_its_controls_the_queue_decides_nothing(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", BOTH)
    names = ("needless_python", "hidden_in_a_thread")
    records = [r for r in read_records(run) if r.implementation not in names]
    decisions = {d.regime: d for d in decide_run(records)}
    assert decisions[Regime.DEVICE].min_length == 128
    assert decisions[Regime.QUEUE].min_length is None
    assert "the checks host and burst work" in decisions[Regime.QUEUE].reasons[0]


def test_graphs_decide_for_graphs(tmp_path: Path) -> None:
    def in_graphs(plan: Plan) -> Plan:
        cases = []
        for planned in plan.cases:
            timing = planned.case.timing.model_copy(update={"mode": Mode.GRAPH})
            case = Case(**{**planned.case.model_dump(), "timing": timing})
            cases.append(planned.model_copy(update={"case": case, "id": case.id}))
        return plan.model_copy(update={"cases": cases})

    run = make_run(tmp_path / "run", BOTH, change=in_graphs)
    [decision] = decide_run(*read_run(run))
    assert (decision.regime, decision.min_length) == (Regime.GRAPH, 128)
    runtime = yaml.safe_load(as_yaml([decision]))["runtime"]
    assert runtime["sel_triton_min_L_by_regime"] == {"graph": {"NVIDIA H200": 128}}


@pytest.mark.parametrize("write", [write_html, write_markdown])
def test_every_decision_that_is_shown_names_its_regime(tmp_path: Path, write) -> None:  # type: ignore[no-untyped-def]
    run = make_run(tmp_path / "run", BOTH)
    text = write(Facts.read(RunFolder(run).path), tmp_path).read_text()
    for said in ("device: worth using from L = 128 on", "queue: worth using from L = 512 on"):
        assert said in text
    decisions = decide_run(*read_run(run))
    assert "device: worth using from L = 128 on" in as_text(decisions)

"""The decision, and the file that a gate loads."""

import json
from dataclasses import replace

import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from nsabench.cli.threshold import command
from nsabench.errors import UsageError
from nsabench.model.source import Source
from nsabench.model.vocabulary import (
    Catch,
    Direction,
    DType,
    Regime,
    Role,
    Status,
    ThresholdAnswer,
    Verdict,
)
from nsabench.verdicts.length_series import Tested as Cell  # pytest would collect a `Test…`
from nsabench.verdicts.length_series import find_objections
from nsabench.verdicts.tables import read_records
from nsabench.verdicts.threshold import decide_run, read_run
from nsabench.verdicts.thresholds_yaml import as_data, as_text, as_yaml
from tests.runs import Made, change_infos, make_run, record, with_comparison


def decide(tmp_path, made):
    [decision] = decide_run(*read_run(make_run(tmp_path / made.run_id, made)))
    return decision


def test_the_smallest_length_from_which_all_pass(tmp_path):
    decision = decide(tmp_path, Made())
    assert (decision.gpu, decision.min_length, decision.reasons) == ("NVIDIA H200", 256, [])
    assert decision.tested == 16 and 1.4 < decision.weakest < 1.5
    assert decision.decided_by is not None and decision.decided_by.length == 128
    # Unproven checks are caveats, and do not change the decision.
    (caveat,) = decision.caveats
    assert "timer, baseline, roofline" in caveat
    assert as_data([decision])["decisions"][0]["caveats"] == [caveat]
    text = as_text([decision])
    assert "from L = 256" in text and "at L = 128: slower" in text and caveat in text
    [document] = as_data([replace(decision, axis="T")])["decisions"]
    assert (document["axis"], document["min_L"]) == ("T", 256)


def wins_but_at_the_top(length):
    return 0.9 if length == 512 else 2.0


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (Made(ratio=wins_but_at_the_top), "nothing qualifies: at the greatest length, L=512, "),
        (Made(ratio=lambda _: 1.15), "nothing qualifies"),
        (Made(control_caught=False), "controls were not caught: zero_output"),
        (Made(shapes=((256, 4, 64), (512, 4, 128))), "the tested heads are 4"),
        (Made(shapes=((256, 4, 64), (512, 8, 64))), "the tested head dims are 64"),
        (Made(lengths=(512,)), "no length above 512 was tested"),
        (Made(status=lambda _: Status.CRASHED), "is crashed"),
        (Made(status=lambda _: Status.UNSUPPORTED), "no case was measured"),
    ],
)
def test_null_says_why(tmp_path, made, reason):
    decision = decide(tmp_path, made)
    assert decision.min_length is None
    assert any(reason in stated for stated in decision.reasons), decision.reasons


def test_a_crash_below_the_threshold_does_not_matter_and_above_it_does(tmp_path):
    def crashes_at(length):
        return Made(
            run_id=f"r{length}",
            ratio=lambda _: 2.0,
            status=lambda n: Status.CRASHED if n == length else Status.OK,
        )

    assert decide(tmp_path, crashes_at(64)).min_length == 128
    assert decide(tmp_path, crashes_at(256)).min_length is None  # one length is left above


def test_several_runs_combine_to_what_holds_for_all(tmp_path):
    one, other = Made(), Made(run_id="r2", torch="2.12.1", ratio=lambda n: n / 64)
    third = replace(one, run_id="r3", gpu="NVIDIA L4", ratio=lambda _: 0.5)
    decisions = [decide(tmp_path, made) for made in (one, other, third)]
    content = yaml.safe_load(as_yaml(decisions))
    assert content["runtime"]["sel_triton_min_L"] == {"NVIDIA H200": 256, "NVIDIA L4": None}


def test_every_candidate_is_decided_and_the_users_own_comes_first(tmp_path):
    """A better shipped candidate neither hides the user's candidate nor sets its gate."""
    made = Made(implementations=("faster", "mine", "shipped"), source="kernels")
    records, plan = read_run(make_run(tmp_path / "run", made))
    own = {"mine": {"source": Source("mine.py@aaaaaaaaaaaa")}}
    plan = change_infos(plan, lambda info: own.get(info.name, {}))
    better = [
        with_comparison(r, verdict=Verdict.FASTER, lo=3.0) if r.implementation == "faster" else r
        for r in records
    ]
    decisions = decide_run(better, plan)
    assert [(d.candidate, d.own, d.min_length) for d in decisions] == [
        ("mine", True, 256),
        ("faster", False, 64),
        ("shipped", False, 256),
    ]
    document = as_data(decisions)
    assert [d["gate"] for d in document["decisions"]] == [True, False, False]
    assert document["runtime"]["sel_triton_min_L"] == {"NVIDIA H200": 256}


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([64, 128, 256, 512]), st.floats(0.5, 3)), min_size=1))
def test_monotone(cells):
    """All cases at or above a threshold pass. From any lower length, some case does not."""
    records = [
        with_comparison(
            record("k", Role.CANDIDATE, case_id=str(i), length=n),
            verdict=Verdict.FASTER if lo > 1 else Verdict.SLOWER,
            lo=lo,
        )
        for i, (n, lo) in enumerate(cells)
    ]
    [decision] = decide_run(records)
    rows = [Cell(r, r.own, "") for r in records]
    if decision.min_length is not None:
        assert all(r.passes(1.2) for r in rows if r.length >= decision.min_length)
        for lower in {r.length for r in rows if r.length < decision.min_length}:
            assert not all(r.passes(1.2) for r in rows if r.length >= lower)
    elif any("qualifies" in reason for reason in decision.reasons):
        top = max(r.length for r in rows)
        assert not all(r.passes(1.2) for r in rows if r.length == top)


def test_the_gate_loads_what_we_write(tmp_path):
    policy = pytest.importorskip("nsa_kernels.gate.policy")
    decision = decide(tmp_path, Made())
    never = replace(decision, gpu="NVIDIA L4", min_length=None)
    path = tmp_path / "thresholds.yaml"
    path.write_text(as_yaml([decision, never]))
    assert policy.Policy.from_thresholds(path).min_len == {"NVIDIA H200": 256, "NVIDIA L4": None}
    path.write_text(as_yaml([replace(never, gpu="")]))
    assert policy.Policy.from_thresholds(path).min_len is None


def records_of(op, lengths, controls=True):
    """Return records with these lower ends of speed-ups by length. Controls are caught."""
    return [
        with_comparison(
            record(
                "mine", role, case_id=f"{op} {length}", op=op, length=length, caught=Catch.CAUGHT
            ),
            verdict=Verdict.FASTER,
            lo=lo,
        )
        for length, lo in lengths.items()
        for role in (Role.CANDIDATE, *([Role.CONTROL] if controls else []))
    ]


@pytest.mark.parametrize(
    ("op", "axis"), [("sliding_window", "T"), ("compressed", "T"), ("decode_step", "S")]
)
def test_a_length_that_is_not_selected_sets_no_gate(op, axis):
    """Otherwise a compressed branch that wins from T = 32 would enable the selection kernel."""
    [decision] = decide_run(records_of(op, {32: 3.0, 64: 3.0}))
    assert (decision.min_length, decision.axis) == (32, axis)
    assert as_data([decision])["runtime"]["sel_triton_min_L"] is None


def test_a_gate_takes_the_lengths_of_each_regime(tmp_path):
    policy = pytest.importorskip("nsa_kernels.gate.policy")
    made = Made(ratio=lambda _: 2.0, queue_ratio=lambda n: 0.3 if n < 256 else 2.0)
    path = tmp_path / "thresholds.yaml"
    path.write_text(as_yaml(decide_run(*read_run(make_run(tmp_path / "run", made)))))
    loaded = policy.Policy.from_thresholds(path)
    lengths = {name: {"NVIDIA H200": n} for name, n in (("device", 64), ("queue", 256))}
    assert (loaded.min_len, loaded.by_regime) == ({"NVIDIA H200": 64}, lengths)


def test_a_backward_has_no_say(tmp_path):
    records = read_records(make_run(tmp_path / "run"))
    backward = [replace(record, direction=Direction.BACKWARD) for record in records]
    slow = [with_comparison(record, verdict=Verdict.SLOWER, lo=0.5) for record in backward]
    [decision] = decide_run([*records, *slow])
    assert decision.min_length == 256


def test_records_without_a_column_decide_nothing(tmp_path):
    path = make_run(tmp_path / "run") / "records.parquet"
    pq.write_table(pq.read_table(path).drop_columns(["direction"]), path)
    with pytest.raises(UsageError, match="holds a row that has no direction"):
        read_run(path.parent)


def declining(at):
    return lambda length: Status.UNSUPPORTED if length == at else Status.OK


@pytest.mark.parametrize(("at", "length"), [(64, 128), (128, 256), (256, None), (512, None)])
def test_a_length_that_is_declined_ends_the_walk(tmp_path, at, length):
    """A kernel that declines a length is not worth using from that length or a shorter one."""
    decision = decide(tmp_path, Made(ratio=lambda _: 2.0, status=declining(at)))
    assert decision.min_length == length
    by = decision.decided_by
    assert by is not None and (by.length, by.record.status) == (at, Status.UNSUPPORTED)
    if at == 512:
        assert decision.answer is ThresholdAnswer.NO
        assert "L=512, mine on " in decision.reasons[0]
        assert "is unsupported (as the test wants it)" in decision.reasons[0]


def test_a_series_that_is_declined_as_a_whole_does_not_count(tmp_path):
    records, plan = read_run(make_run(tmp_path / "run"))
    declined = [
        replace(r, case_id=f"b{r.case_id}", dtype=DType.FLOAT32, status=Status.UNSUPPORTED)
        for r in records
        if r.role is Role.CANDIDATE
    ]
    cases = {r.case_id: plan.by_id[r.case_id.removeprefix("b")] for r in declined}
    wider = [*plan.cases, *(p.model_copy(update={"id": new}) for new, p in cases.items())]
    plan = plan.model_copy(update={"cases": wider})
    [decision] = decide_run([*records, *declined], plan)
    assert (decision.min_length, decision.tested) == (256, 16)


@pytest.mark.parametrize(
    ("caught", "why"), [("caught", ""), ("declined", "none was caught"), (None, "none ran")]
)
def test_an_op_needs_a_control_of_its_own_that_was_caught(caught, why):
    mine = records_of("selection_rows", {64: 1.5, 128: 1.5})
    other = records_of("sliding_window", {64: 1.5, 128: 1.5}, controls=caught is not None)
    other = [replace(r, caught=Catch(caught)) if caught else r for r in other]
    rows = [*mine, *other]
    assert find_objections(rows, "selection_rows", Regime.DEVICE) == []
    objections = find_objections(rows, "sliding_window", Regime.DEVICE)
    assert [why in objection for objection in objections] == ([True] if why else [])
    decisions = {d.op: d for d in decide_run(rows)}
    assert set(objections) <= set(decisions["sliding_window"].reasons)
    assert not set(objections) & set(decisions["selection_rows"].reasons)


def test_a_threshold_for_one_shape_needs_no_other_shapes(tmp_path):
    folder = make_run(tmp_path / "run")
    one = ["--where", "H=8 and D=128"]
    done = CliRunner().invoke(command, [str(folder), *one])
    assert "worth using from L = 256 where H=8 and D=128" in done.stdout
    content = json.loads(CliRunner().invoke(command, [str(folder), *one, "--json"]).stdout)
    [decision] = content["decisions"]
    assert (decision["where"], decision["cases"]) == (["H=8 and D=128"], 8)
    done = CliRunner().invoke(command, [str(folder), "--where", "H>4"])
    assert "coverage is too small" in done.stdout, "another might be in there, and is not"
    done = CliRunner().invoke(command, [str(folder), "--where", "H=7"])
    assert isinstance(done.exception, UsageError)


def test_a_run_of_one_shape_says_so(tmp_path):
    made = Made(shapes=((256, 8, 128),))
    pinned = {"where": ("H=8", "D=128")}
    narrow = make_run(tmp_path / "a", made, change=lambda p: p.model_copy(update=pinned))
    [alone] = decide_run(*read_run(narrow))
    assert (alone.min_length, alone.where) == (256, ("H=8", "D=128"))
    assert decide(tmp_path, made).min_length is None

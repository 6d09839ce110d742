"""The decision, the file a gate loads, and the patch."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from nsabench import ops
from nsabench.cli.threshold import command
from nsabench.errors import UsageError
from nsabench.model.record import Record
from nsabench.model.source import Source
from nsabench.model.vocabulary import Direction, Regime, Role, Status, Verdict
from nsabench.verdicts.objections import against
from nsabench.verdicts.series import Tested as Cell  # pytest would collect a `Test…`
from nsabench.verdicts.tables import read_records
from nsabench.verdicts.threshold import as_markdown, as_yaml, decide_all, of_run, of_tables
from nsabench.verdicts.threshold.decide import Decision
from nsabench.verdicts.threshold.document import as_data
from nsabench.verdicts.threshold.evidence import Evidence, of_records
from nsabench.verdicts.threshold.patch import patch
from tests.runs import Made, make_run, record, with_comparison


def changed(tested: Cell, name: str = "", **known: Any) -> Cell:
    """The same with another name, or with these values in its comparison."""
    renamed = replace(tested.record, implementation=name or tested.record.implementation)
    return replace(tested, record=renamed, comparison=replace(tested.comparison, **known))


def of_kernels(tested: Cell) -> Cell:
    """The same of a package instead of the user's own file."""
    return replace(tested, record=replace(tested.record, source=Source("kernels")), own=False)


def decide(tmp_path: Path, made: Made) -> Decision:
    [decision] = decide_all([of_run(make_run(tmp_path / made.run_id, made))])
    return decision


def test_the_smallest_length_from_which_all_pass(tmp_path: Path) -> None:
    decision = decide(tmp_path, Made())
    assert (decision.gpu, decision.min_length, decision.reasons) == ("NVIDIA H200", 256, [])
    assert [(r.length, r.cases, r.passed) for r in decision.rungs] == [
        (64, 4, 0),
        (128, 4, 0),
        (256, 4, 4),
        (512, 4, 4),
    ]
    assert decision.decided_by is not None and decision.decided_by.length == 128
    assert "from L = 256 on" in as_markdown([decision])


def test_a_threshold_says_what_it_rests_on_that_is_not_proven(tmp_path: Path) -> None:
    """It holds: nothing speaks against these checks, and nothing for them."""
    decision = decide(tmp_path, Made())
    (caveat,) = decision.caveats
    assert caveat == (
        "no control showed that the checks timer, baseline and roofline (none was there) work for "
        "selection_rows"
    )
    assert as_data([decision])["decisions"][0]["caveats"] == [caveat]
    assert f"- {caveat}" in as_markdown([decision]) and decision.min_length == 256


def wins_but_at_the_top(length: int) -> float:
    return 0.9 if length == 512 else 2.0


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (Made(ratio=wins_but_at_the_top), "nothing qualifies: at the greatest length, L=512, "),
        (Made(ratio=lambda _: 1.15), "nothing qualifies"),
        (Made(control_caught=False), "controls were not caught: zero_output"),
        (Made(shapes=((256, 4, 64), (512, 4, 128))), "on the tested heads are 4"),
        (Made(shapes=((256, 4, 64), (512, 8, 64))), "on the tested head dims are 64"),
        (Made(lengths=(512,)), "only one length was tested"),
        (Made(status=lambda _: Status.CRASHED), "is crashed"),
        (Made(status=lambda _: Status.UNSUPPORTED), "no case was measured"),
    ],
)
def test_null_says_why(tmp_path: Path, made: Made, reason: str) -> None:
    decision = decide(tmp_path, made)
    assert decision.min_length is None
    assert any(reason in stated for stated in decision.reasons), decision.reasons


def test_a_crash_below_the_threshold_does_not_matter_and_above_it_does(tmp_path: Path) -> None:
    def crashes_at(length: int) -> Made:
        return Made(
            run_id=f"r{length}",
            ratio=lambda _: 2.0,
            status=lambda n: Status.CRASHED if n == length else Status.OK,
        )

    assert decide(tmp_path, crashes_at(64)).min_length == 128
    assert decide(tmp_path, crashes_at(256)).min_length is None  # one length is left above


def test_several_runs_combine_to_what_holds_for_all(tmp_path: Path) -> None:
    one, other = Made(), Made(run_id="r2", torch="2.12.1", ratio=lambda n: n / 64)
    third = replace(one, run_id="r3", gpu="NVIDIA L4", ratio=lambda _: 0.5)
    decisions = decide_all([of_run(make_run(tmp_path / m.run_id, m)) for m in (one, other, third)])
    assert len(decisions) == 3
    content = yaml.safe_load(as_yaml(decisions))
    assert content["runtime"]["sel_triton_min_L"] == {"NVIDIA H200": 256, "NVIDIA L4": None}


def test_of_two_that_pass_alike_the_faster_is_named(tmp_path: Path) -> None:
    evidence = of_run(make_run(tmp_path / "run", Made(ratio=lambda _: 2.0)))
    faster = [changed(t, name="zz", lo=3 * (t.lo or 0)) for t in evidence.tested]
    first, second = decide_all([replace(evidence, tested=[*evidence.tested, *faster])])
    assert (first.candidate, second.candidate) == ("zz", "mine")


def test_every_candidate_is_decided_and_the_users_own_comes_first(tmp_path: Path) -> None:
    """A shipped one that is better does not hide what became of the user's, nor set its gate."""
    own = of_run(make_run(tmp_path / "own", Made(source="mine.py@aaaaaaaaaaaa")))
    # What is shipped has a digest, too.
    made = Made(implementations=("rows_cuda",), ratio=lambda _: 3.0, sources={"x": "a" * 64})
    shipped = of_run(make_run(tmp_path / "shipped", made))
    decisions = decide_all([replace(own, tested=[*shipped.tested, *own.tested])])
    assert [(d.candidate, d.own, d.min_length) for d in decisions] == [
        ("mine", True, 256),
        ("rows_cuda", False, 64),
    ]
    document = as_data(decisions)
    assert [(d["candidate"], d["own"], d["gate"]) for d in document["decisions"]] == [
        ("mine", True, True),
        ("rows_cuda", False, False),
    ]
    assert document["runtime"]["sel_triton_min_L"] == {"NVIDIA H200": 256}
    text = as_markdown(decisions)
    assert "## `mine` (selection_rows) on NVIDIA H200, device: worth using from L = 256 on" in text
    assert (
        "## `rows_cuda` (selection_rows) on NVIDIA H200, device: worth using from L = 64 on" in text
    )


def test_a_gate_goes_by_one_kernel_with_every_combo(tmp_path: Path) -> None:
    """Two of different sources gave one length that neither was shown to be worth."""
    a = Made(implementations=("a",))
    b = Made(run_id="r2", torch="2.12.1", implementations=("b",), ratio=lambda _: 2.0, seed=1)
    decisions = decide_all(
        [of_run(make_run(tmp_path / name, made)) for name, made in (("a", a), ("b", b))]
    )
    assert [(d.candidate, d.min_length) for d in decisions] == [("a", 256), ("b", 64)]
    document = as_data(decisions)
    assert document["runtime"]["sel_triton_min_L"] == {"NVIDIA H200": None}
    assert [d["gate"] for d in document["decisions"]] == [False, True]
    [note] = document["notes"]
    assert note == (
        "selection_rows on NVIDIA H200, device: a gate goes by one kernel, here b, which was not "
        "tested with torch 2.11.0, triton 3.6.0, CUDA 13.0: no length holds for all that was given"
    )
    assert note in as_markdown(decisions)


def test_a_gate_that_goes_by_the_second_best_of_a_combo_says_so(tmp_path: Path) -> None:
    one = Made(implementations=("a",))
    other = Made(run_id="r2", torch="2.12.1", implementations=("a", "b"))
    evidence = of_run(make_run(tmp_path / "2", other))
    faster = [
        changed(t, lo=3.0, verdict=Verdict.FASTER) if t.record.implementation == "b" else t
        for t in evidence.tested
    ]
    decisions = decide_all(
        [of_run(make_run(tmp_path / "1", one)), replace(evidence, tested=faster)]
    )
    document = as_data(decisions)
    assert document["runtime"]["sel_triton_min_L"] == {"NVIDIA H200": 256}
    assert document["notes"] == [
        "selection_rows on NVIDIA H200, device: a gate goes by one kernel with every combo, here "
        "a; with torch 2.12.1, triton 3.6.0, CUDA 13.0 b is better"
    ]


def test_a_gate_goes_by_the_users_own_or_by_nothing(tmp_path: Path) -> None:
    """Where it was not tested, another kernel does not stand in for it."""
    own = replace(Made(source="mine.py@aaaaaaaaaaaa"), implementations=("mine", "shipped"))
    evidence = of_run(make_run(tmp_path / "own", own))
    tested = [of_kernels(t) if t.record.implementation == "shipped" else t for t in evidence.tested]
    made = Made(run_id="r2", torch="2.12.1", implementations=("shipped",), ratio=lambda _: 3.0)
    shipped = of_run(make_run(tmp_path / "shipped", made))
    shipped = replace(shipped, tested=[of_kernels(t) for t in shipped.tested])
    document = as_data(decide_all([replace(evidence, tested=tested), shipped]))
    assert document["runtime"]["sel_triton_min_L"] == {"NVIDIA H200": None}
    assert "here mine, which was not tested with torch 2.12.1" in document["notes"][0]


def test_a_patch_says_why_it_never_uses_a_kernel(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / name, Made(run_id=name, torch=torch, implementations=(name,)))
        for name, torch in (("a", "2.11.0"), ("b", "2.12.1"))
    ]
    config = tmp_path / "config.yaml"
    config.write_text("runtime:\n  sel_triton_min_L: 64\n")
    done = CliRunner().invoke(command, [*map(str, runs), "--patch", str(config)])
    assert "+  sel_triton_min_L: null" in done.stdout
    assert "here a, which was not tested with torch 2.12.1" in done.stderr


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([64, 128, 256, 512]), st.floats(0.5, 3)), min_size=1))
def test_monotone(cells: list[tuple[int, float]]) -> None:
    """No tested case at or above a threshold fails, and any lower length has one that does."""
    rows = [
        found
        for i, (n, lo) in enumerate(cells)
        for verdict in [Verdict.FASTER if lo > 1 else Verdict.SLOWER]
        for found in of_records(
            [
                with_comparison(
                    record("k", Role.CANDIDATE, case_id=str(i), length=n), verdict=verdict, lo=lo
                )
            ]
        ).tested
    ]
    [decision] = decide_all([Evidence(rows)])
    if decision.min_length is not None:
        assert all(r.passes(1.2) for r in rows if r.length >= decision.min_length)
        for lower in {r.length for r in rows if r.length < decision.min_length}:
            assert not all(r.passes(1.2) for r in rows if r.length >= lower)
    elif any("qualifies" in reason for reason in decision.reasons):
        top = max(r.length for r in rows)
        assert not all(r.passes(1.2) for r in rows if r.length == top)


def test_the_earlier_tables_decide_nothing(tmp_path: Path) -> None:
    path = tmp_path / "dense.csv"
    path.write_text(
        "N,H,D,Dv,L,triton_ms,sdpa_ms,speedup,mae,status\n"
        "256,4,64,64,64,0.02,0.074,3.7,1.17e-04,FASTER\n"
        "256,4,64,64,128,0.02,0.074,3.7,1.09e-01,FASTER\n"
    )
    [decision] = decide_all([of_tables([path], "RTX 4090")])
    assert decision.min_length is None
    assert any("dense.csv: parity" in reason for reason in decision.reasons)


def test_the_gate_loads_what_we_write(tmp_path: Path) -> None:
    policy = pytest.importorskip("nsa_kernels.gate.policy")
    decision = decide(tmp_path, Made())
    never = replace(decision, gpu="NVIDIA L4", min_length=None)
    path = tmp_path / "thresholds.yaml"
    path.write_text(as_yaml([decision, never]))
    assert policy.Policy.from_thresholds(path).min_len == {"NVIDIA H200": 256, "NVIDIA L4": None}
    path.write_text(as_yaml([replace(never, gpu="")]))
    assert policy.Policy.from_thresholds(path).min_len is None


A_RECORD = {
    "run_id": "r",
    "case_id": "c",
    "op": "selection_rows",
    "implementation": "mine",
    "role": "candidate",
    "direction": "forward",
    "device": "cuda",
    "length": 64,
    "distribution": "dense",
    "status": "ok",
    "caught": "caught",
    "gpu_name": "NVIDIA H200",
    "torch": "2.11.0",
    "triton": "3.6.0",
    "cuda": "13.0",
    "dtype": "bfloat16",
    "streams": 1,
}


def rows_of(op: str, lengths: dict[int, float]) -> list[Cell]:
    """Through records, as a run gives them; `lengths` to the lower end of the speed-up."""
    records = [
        with_comparison(
            Record.from_row(
                {**A_RECORD, "case_id": f"{op} {length}", "op": op, "role": role, "length": length}
            ),
            verdict=Verdict.FASTER,
            lo=lo,
        )
        for length, lo in lengths.items()
        for role in ("candidate", "control")
    ]
    evidence = of_records(records)
    assert not evidence.against.get(("", None))
    return evidence.tested


@pytest.mark.parametrize(
    ("op", "axis"), [("sliding_window", "T"), ("compressed", "T"), ("decode_step", "S")]
)
def test_a_length_that_is_not_selected_sets_no_gate(op: str, axis: str) -> None:
    """Or a compressed branch that wins from T = 32 on would switch the selection kernel on."""
    [decision] = decide_all([Evidence(rows_of(op, {32: 3.0, 64: 3.0}))])
    assert (decision.min_length, decision.axis) == (32, axis)
    assert as_data([decision])["runtime"]["sel_triton_min_L"] is None


def test_without_a_selected_length_there_is_nothing_to_patch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("runtime: {sel_triton_min_L: 64}\n")
    run = make_run(tmp_path / "run", Made())
    monkeypatch.setattr(type(ops.get("selection_rows")), "length_axis", "T")
    done = CliRunner().invoke(command, [str(run), "--patch", str(config)])
    assert isinstance(done.exception, UsageError), done.output
    assert "decided by a selected length" in str(done.exception)


def test_what_no_gpu_measured_is_patched_to_never(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("runtime: {sel_triton_min_L: 64}\n")
    run = make_run(tmp_path / "run", Made(gpu=""))
    done = CliRunner().invoke(command, [str(run), "--patch", str(config)])
    assert done.exit_code == 0, done.output
    assert "+runtime: {sel_triton_min_L: null}" in done.stdout


CONFIG = """\
# the model
model: {dim: 64}   # inline
runtime:
  # measured in August
  sel_triton_min_L: 4096  # never, in effect
  other: 'kept'
list:
- 1
"""
CONFIGS: list[Callable[[str], str]] = [
    lambda text: text,
    lambda text: text.replace("  sel_triton_min_L: 4096  # never, in effect\n", ""),
    lambda text: text.replace("4096", "{a: 1, b: null}"),
    lambda text: text.replace("4096  # never, in effect", "\n    NVIDIA L4: 7 # why\n    b: null"),
    lambda text: text.replace("4096", ""),
    lambda text: text[: text.index("runtime")],
    lambda text: "",
    lambda text: text.replace("\n", "\r\n"),
]


@pytest.mark.parametrize("change", CONFIGS)
@pytest.mark.parametrize("value", [256, None, {"NVIDIA H200": 256, "NVIDIA L4": None}])
def test_patch_changes_one_value_and_keeps_comments(
    tmp_path: Path, change: Callable[[str], str], value: int | dict[str, int | None] | None
) -> None:
    before = change(CONFIG)
    path = tmp_path / "config.yaml"
    path.write_bytes(before.encode())
    diff = patch(path, value)
    if diff:
        subprocess.run(["patch", "--binary", "-p1"], cwd=tmp_path, input=diff.encode(), check=True)
    after = path.read_bytes().decode()
    expected = yaml.safe_load(before) or {}
    runtime = expected.get("runtime") or {}
    assert yaml.safe_load(after) == {**expected, "runtime": {**runtime, "sel_triton_min_L": value}}
    for comment in ("# the model", "# inline", "# measured in August", "# never, in effect"):
        assert (comment in after) == (comment in before)
    assert ("\r\n" in after) == ("\r\n" in before)


@pytest.mark.parametrize("change", CONFIGS)
def test_a_patch_holds_the_regimes_apart(tmp_path: Path, change: Callable[[str], str]) -> None:
    before = change(CONFIG)
    path = tmp_path / "config.yaml"
    path.write_bytes(before.encode())
    by_regime = {"device": 256, "queue": {"NVIDIA H200": None, "NVIDIA L4": 512}}
    diff = patch(path, 256, by_regime)
    subprocess.run(["patch", "--binary", "-p1"], cwd=tmp_path, input=diff.encode(), check=True)
    expected = yaml.safe_load(before) or {}
    lengths = {"sel_triton_min_L": 256, "sel_triton_min_L_by_regime": by_regime}
    expected["runtime"] = {**(expected.get("runtime") or {}), **lengths}
    assert yaml.safe_load(path.read_bytes()) == expected
    assert patch(path, 256, by_regime) == ""


def test_what_is_patched_is_what_thresholds_yaml_holds(tmp_path: Path) -> None:
    policy = pytest.importorskip("nsa_kernels.gate.policy")
    made = Made(ratio=lambda _: 2.0, queue_ratio=lambda n: 0.3 if n < 256 else 2.0)
    run, config = make_run(tmp_path / "run", made), tmp_path / "config.yaml"
    config.write_text("runtime: {sel_triton_min_L: 7}\n")
    done = CliRunner().invoke(command, [str(run), "--patch", str(config)])
    subprocess.run(["patch", "-p1"], cwd=tmp_path, input=done.stdout.encode(), check=True)
    loaded = policy.Policy.from_thresholds(config)
    assert (loaded.min_len, loaded.by_regime) == (64, {"device": 64, "queue": 256})


def test_what_cannot_be_patched_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    for text in ("{a: 1}", "- 1\n", "runtime: 3\n", "a: [\n"):
        path.write_text(text)
        with pytest.raises(UsageError):
            patch(path, 1)


def test_a_backward_has_no_say(tmp_path: Path) -> None:
    records = read_records(make_run(tmp_path / "run"))
    backward = [replace(record, direction=Direction.BACKWARD) for record in records]
    slow = [with_comparison(record, verdict=Verdict.SLOWER, lo=0.5) for record in backward]
    [decision] = decide_all([of_records([*records, *slow])])
    assert decision.min_length == 256


def test_the_size_that_a_threshold_is_of_is_named(tmp_path: Path) -> None:
    decision = decide(tmp_path, Made())
    [document] = as_data([replace(decision, axis="T")])["decisions"]
    assert (document["axis"], document["min_L"]) == ("T", 256)


def test_records_without_a_column_decide_nothing(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run") / "records.parquet"
    pq.write_table(pq.read_table(path).drop_columns(["direction"]), path)
    with pytest.raises(UsageError, match="holds a record that has no direction"):
        of_run(path.parent)


def test_a_table_that_an_audit_does_not_rely_on_decides_nothing(tmp_path: Path) -> None:
    """Times that do not grow with the work, of data that fit into an L2."""
    path = tmp_path / "flat.csv"
    lines = [f"64,{h},{d},{n},0.02,0.1" for h in (4, 8) for d in (64, 128) for n in (64, 256, 1024)]
    path.write_text("N,H,D,L,triton_ms,sdpa_ms\n" + "\n".join(lines))
    [decision] = decide_all([of_tables([path], "RTX 4090")])
    assert decision.min_length is None
    assert any("scaling" in reason for reason in decision.reasons)


def sized(settings: tuple[str, ...], slow: str = "") -> str:
    """A table of honest times; of the setting `slow`, the kernel is slower than its baseline."""
    lines = [
        f"1024,{h},{d},{n},{work * (4 if word == slow else 1)},{2 * work},{word}"
        for h in (4, 8)
        for d in (64, 128)
        for n in (64, 256, 1024)
        for word in settings
        for work in [n * h * d * 1e-6]
    ]
    return "\n".join(lines)


def test_the_distributions_of_a_table_are_cases_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"N,H,D,L,triton_ms,sdpa_ms,distribution\n{sized(('dense', 'spread'))}")
    [decision] = decide_all([of_tables([path], "RTX 4090")])
    assert (decision.min_length, decision.tested, decision.reasons) == (64, 24, [])


def test_a_backward_of_a_table_has_no_say(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"N,H,D,L,triton_ms,sdpa_ms,direction\n{sized(('fwd', 'bwd'), slow='bwd')}")
    [decision] = decide_all([of_tables([path], "RTX 4090")])
    assert (decision.min_length, decision.tested) == (64, 12)


def test_an_op_without_controls_keeps_no_other_from_a_decision() -> None:
    mine = rows_of("selection_rows", dict.fromkeys((64, 128, 256), 1.5))
    [bare] = rows_of("sliding_window", {64: 1.5})
    objection = "no control shows that a mistake in sliding_window would be noticed: none ran"
    together = Evidence([*mine, bare], {("sliding_window", None): [objection]})
    reasons = {d.op: d.reasons for d in decide_all([together])}
    assert objection in reasons["sliding_window"]
    assert objection not in reasons["selection_rows"]


def test_an_op_of_which_no_control_was_caught_is_named() -> None:
    rows = [
        {**one, "op": op, "role": role, "implementation": name, "caught": caught}
        for op, role, name, caught in (
            ("selection_rows", "candidate", "mine", None),
            ("selection_rows", "control", "cheat", "caught"),
            ("sliding_window", "candidate", "mine", None),
            ("sliding_window", "control", "cheat", "declined"),
            ("compressed", "candidate", "mine", None),
        )
        for one in [A_RECORD]
    ]
    evidence = of_records([Record.from_row(row) for row in rows])
    said = {
        op: against(evidence.against, op, Regime.DEVICE)
        for op in ("selection_rows", "sliding_window", "compressed")
    }
    assert said["selection_rows"] == []
    assert said["sliding_window"][0].endswith("none was caught")
    assert said["compressed"][0].endswith("none ran")


def test_a_threshold_for_one_shape_needs_no_other_shapes(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    one = ["--where", "H=8 and D=128"]
    done = CliRunner().invoke(command, [str(folder), *one])
    assert "worth using from L = 256 on where H=8 and D=128" in done.stdout
    content = yaml.safe_load(CliRunner().invoke(command, [str(folder), *one, "--yaml"]).stdout)
    [decision] = content["decisions"]
    assert (decision["where"], decision["cases"]) == (["H=8 and D=128"], 8)
    done = CliRunner().invoke(command, [str(folder), "--where", "H>4"])
    assert "coverage is too small" in done.stdout, "another might be in there, and is not"
    done = CliRunner().invoke(command, [str(folder), "--where", "H=7"])
    assert isinstance(done.exception, UsageError)


def test_runs_that_are_not_narrowed_alike_are_for_no_one_shape(tmp_path: Path) -> None:
    made = Made(shapes=((256, 8, 128),))
    pinned = {"where": ("H=8", "D=128")}
    narrow = make_run(tmp_path / "a", made, change=lambda p: p.model_copy(update=pinned))
    wide = make_run(tmp_path / "b", replace(made, run_id="b"))
    [alone] = decide_all([of_run(narrow)])
    assert (alone.min_length, alone.where) == (256, ("H=8", "D=128"))
    [together] = decide_all([of_run(narrow), of_run(wide)])
    assert together.min_length is None and "coverage" in together.reasons[0]

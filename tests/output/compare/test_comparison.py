"""Differences that are reported between two runs."""

import json
from dataclasses import replace

import pytest

from nsabench.errors import UsageError, VerificationFailed
from nsabench.evidence.manifest import seal
from nsabench.evidence.manifest.statement import Trust
from nsabench.model.measurement import Ceilings, Conditions
from nsabench.model.vocabulary import Change, Difference, Regime, Role, Status
from nsabench.output.compare import compare, document, read
from tests.output.compare.conftest import ratios_of
from tests.runs import LENGTHS, SIGNER, Made, make_run

STEADY = Made(ratio=lambda _: 1.5)
NEWER = replace(STEADY, run_id="20260201T000000Z-abc124", torch="2.13.0", triton="3.7.1", seed=1)


def test_two_runs_of_the_same_are_the_same(compared):
    comparison = compared(STEADY, NEWER)
    assert {shift.difference for cell in comparison.cells for shift in cell.shifts} == {
        Difference.SAME
    }
    assert {cell.role for cell in comparison.cells} == {Role.CANDIDATE, Role.BASELINE}
    for name in ("mine", "sdpa_gqa"):
        assert ratios_of(comparison, name) == pytest.approx([1.0] * 16, abs=0.02)
    assert comparison.changes(0) == [] and list(comparison.failures(slower=True)) == []
    assert comparison.differing.keys() == {"torch", "triton"}
    assert comparison.differing["torch"] == ["2.11.0", "2.13.0"]


def test_a_candidate_that_got_slower(compared):
    comparison = compared(STEADY, replace(NEWER, ratio=lambda n: 1.2 if n == 512 else 1.5))
    slow = comparison.slower(0)
    assert {cell.case.shape["L"] for cell, _, _ in slow} == {512} and len(slow) == 4
    for _, _, shift in slow:
        assert shift.ratio == pytest.approx(0.8, rel=0.01)
        assert (
            shift.lo is not None
            and shift.hi is not None
            and shift.lo < shift.ratio < shift.hi < 0.95
        )
    assert list(comparison.failures(slower=False)) == []
    assert len(list(comparison.failures(slower=True))) == 4


def test_a_candidate_that_got_slower_from_python_alone(compared):
    """Its kernels take the same time; its calls from Python take longer."""
    quick = replace(STEADY, queue_ratio=lambda _: 1.5)
    comparison = compared(quick, replace(NEWER, queue_ratio=lambda n: 1.0 if n == 64 else 1.5))
    slow = comparison.slower(0)
    assert {(cell.case.shape["L"], regime) for cell, regime, _ in slow} == {(64, Regime.QUEUE)}
    assert len(slow) == 4
    for _, _, shift in slow:
        assert shift.ratio == pytest.approx(1 / 1.5, rel=0.01)
    shut = list(comparison.failures(slower=True))
    assert len(shut) == 4 and all(" (queue): 0.667 of" in line for line in shut)
    assert list(comparison.failures(slower=False)) == []
    assert document.to_markdown(comparison).count("| `mine` | queue |") == 4


def test_what_decides_nothing_in_the_queue_is_no_regression_there(compared):
    quick = replace(STEADY, queue_ratio=lambda _: 1.5)
    slow = replace(NEWER, queue_ratio=lambda _: 1.0, queue_caught=False)
    comparison = compared(quick, slow)
    assert comparison.slower(0) == [] and not comparison.later[0].missed
    assert {shift.difference for cell in comparison.cells for shift in cell.shifts} == {
        Difference.SAME
    }


def test_a_slower_baseline_is_no_regression_of_the_candidate(compared):
    comparison = compared(STEADY, replace(NEWER, base_ms=0.3, ratio=lambda _: 2.25))
    differences = {(c.implementation, c.shifts[0].difference) for c in comparison.cells}
    assert differences == {("mine", Difference.SAME), ("sdpa_gqa", Difference.SLOWER)}
    assert list(comparison.failures(slower=True)) == []


def test_what_crashed_comes_first_and_has_no_ratio(compared):
    def crashes(length):
        return Status.CRASHED if length >= 256 else Status.OK

    comparison = compared(STEADY, replace(NEWER, status=crashes))
    assert [shift.change for _, shift in comparison.changes(0)] == [Change.BROKE] * 8
    assert ratios_of(comparison, "mine") == pytest.approx([1.0] * 8, abs=0.02)
    assert len(list(comparison.failures(slower=False))) == 8
    text = document.to_markdown(comparison)
    assert text.index("## Statuses that changed") < text.index("geometric mean")
    assert "| broke | selection_rows N256 H4 D64 L256 fp16 | `mine` | ok | crashed |" in text
    for cell in comparison.cells:
        for shift in cell.shifts:
            assert (shift.ratio is None) == (shift.difference is Difference.INVALID)


@pytest.mark.parametrize(
    ("earlier", "later", "change"),
    [
        ("ok", "crashed", Change.BROKE),
        ("ok", "unsupported", Change.BROKE),
        ("skipped", "wrong", Change.BROKE),
        ("ok", "missing", Change.BROKE),
        ("timeout", "ok", Change.MENDED),
        ("wrong", "crashed", Change.OTHER),
        ("unsupported", "skipped", Change.OTHER),
        ("ok", "ok", None),
    ],
)
def test_changes(earlier, later, change):
    assert Change.between(earlier, later) is change


def test_what_both_declined_counts_for_nothing(compared):
    declines = replace(STEADY, status=lambda _: Status.UNSUPPORTED)
    comparison = compared(declines, replace(NEWER, status=lambda _: Status.UNSUPPORTED))
    assert ratios_of(comparison, "mine") == []
    assert "declined by both" in document.to_markdown(comparison)


@pytest.mark.parametrize(
    ("made", "why"),
    [
        ({"control_caught": False}, "zero_output"),
        ({"control_crashed": True}, "not shown to work"),
    ],
)
def test_a_run_that_decides_nothing_shuts_the_gate(compared, made, why):
    comparison = compared(STEADY, replace(NEWER, **made))
    objection = comparison.sides[1].objection
    assert why in objection
    assert list(comparison.failures(slower=True)) == [objection]
    assert "**the run run1 decides nothing" in document.to_markdown(comparison)
    if "control_caught" in made:
        differences = {s.difference for cell in comparison.cells for s in cell.shifts}
        assert differences == {Difference.INVALID}


BROKEN_TIMER = Ceilings(known_duration_error=0.5)


@pytest.mark.parametrize("which", [0, 1])
def test_a_copy_with_half_the_times_and_a_timer_that_is_off_is_no_faster(compared, which):
    runs = [STEADY, replace(STEADY, run_id=NEWER.run_id, base_ms=STEADY.base_ms / 2)]
    runs[which] = replace(runs[which], ceilings=BROKEN_TIMER)
    comparison = compared(*runs)
    assert len(comparison.cells) == 32
    for cell in comparison.cells:
        (shift,) = cell.shifts
        assert (shift.difference, shift.ratio) == (Difference.INCONCLUSIVE, None)
        assert f"in run{which} the timer is off by +50.0%" in shift.why
    (failure,) = list(comparison.failures(slower=True))
    assert f"no time in run1 could be compared: in run{which} the timer" in failure
    assert list(comparison.failures(slower=False)) == []
    assert document.as_document(comparison).cells[0].later[0].doubtful is True


def busy_at(length):
    """Make a run that is twice as slow at one length, where other processes compute."""

    def conditions(n):
        return Conditions(competing_processes=2 if n == length else 0)

    return replace(NEWER, ratio=lambda n: 0.75 if n == length else 1.5, conditions=conditions)


@pytest.mark.parametrize("slower", [(), (64,)])
def test_what_was_disturbed_is_no_slower(compared, slower):
    """Slower cases that were not disturbed still fail the gate."""
    later = replace(busy_at(512), ratio=lambda n: 0.75 if n in (512, *slower) else 1.5)
    comparison = compared(STEADY, later)
    assert {cell.case.shape["L"] for cell, _, _ in comparison.slower(0)} == set(slower)
    assert len(list(comparison.failures(slower=True))) == 4 * len(slower)
    doubtful = comparison.doubtful(0)
    assert {(cell.case.shape["L"], shift.ratio) for cell, shift in doubtful} == {(512, None)}
    assert "in run1 2 other processes computed on the device" in doubtful[0][1].why


def test_throttled_cells_have_no_ratio(compared):
    first, second = compared(STEADY, NEWER).sides
    hot = "hw_thermal_slowdown"
    records = {k: replace(r, clock_event_reasons=hot) for k, r in second.records.items()}
    for cell in compare([first, replace(second, records=records)]).cells:
        assert cell.shifts[0].difference is Difference.INCONCLUSIVE
        assert cell.shifts[0].ratio is None and hot in cell.shifts[0].why


def test_a_time_that_does_not_grow_with_the_work_is_no_slower(compared):
    """2.1 GB take 0.5 ms at 4.25 TB/s. 0.6 ms is possible, but an eighth of it takes as long."""
    large = replace(
        STEADY, shapes=((8192, 8, 128),), base_ms=0.6, ceilings=Ceilings(copy_gb_s=4250)
    )
    grows = replace(large, ratio=lambda n: 2.0 if n == 512 else 1.0)
    comparison = compared(grows, replace(grows, run_id=NEWER.run_id, ratio=lambda n: n / 64))
    doubtful = comparison.doubtful(0)
    assert {(cell.implementation, cell.case.shape["L"]) for cell, _ in doubtful} == {("mine", 512)}
    for _, shift in doubtful:
        assert (shift.difference, shift.ratio) == (Difference.INCONCLUSIVE, None)
        assert shift.why.startswith("in run1 time is flat while work grows: ")
    baselines = [c.shifts[0].difference for c in comparison.cells if c.role is Role.BASELINE]
    assert set(baselines) == {Difference.SAME}


def test_several_runs_are_held_against_the_first(compared):
    third = replace(NEWER, run_id="20260301T000000Z-abc125", seed=2, base_ms=0.1)
    comparison = compared(STEADY, NEWER, third)
    assert [side.name for side in comparison.later] == ["run1", "run2"]
    for later, ratio in ((0, 1.0), (1, 2.0)):
        assert ratios_of(comparison, "mine", later) == pytest.approx([ratio] * 16, rel=0.02)


def test_different_plans_are_refused_and_named(compared):
    other = replace(NEWER, lengths=(64, 128, 1024), implementations=("mine", "also"))
    with pytest.raises(UsageError) as refused:
        compared(STEADY, other)
    sentence = str(refused.value)
    assert "8 cases are only in run0, such as selection_rows" in sentence
    assert "4 cases are only in run1" in sentence
    assert "also is measured only in run1 (8 cases)" in sentence
    assert "--intersection" in refused.value.remedy


def test_the_intersection_of_different_plans(compared, tmp_path):
    other = replace(NEWER, lengths=(64, 128, 1024), implementations=("mine", "also"))
    comparison = compared(STEADY, other, intersection=True)
    assert {cell.case.shape["L"] for cell in comparison.cells} == {64, 128}
    assert {cell.implementation for cell in comparison.cells} == {"mine", "sdpa_gqa"}
    assert len(comparison.disagreements) == 3
    assert "only in run0" in document.to_markdown(comparison)
    with pytest.raises(UsageError, match="nothing in common"):
        sides = [tmp_path / "run0", make_run(tmp_path / "run9", replace(NEWER, lengths=(96,)))]
        compare(read(sides), intersection=True)


def test_cases_that_were_timed_another_way_are_not_compared(tmp_path):
    folders = [make_run(tmp_path / "a", STEADY), make_run(tmp_path / "b", NEWER)]
    plan = json.loads((folders[1] / "plan.json").read_text())
    plan["cases"][0]["case"]["timing"]["rotate"] = 9
    plan["cases"][1]["case"]["timing"]["warmup_s"] = 1.0  # does not change what is measured
    (folders[1] / "plan.json").write_text(json.dumps(plan))
    with pytest.raises(UsageError, match="1 cases have another timing in b"):
        compare(read(folders))
    comparison = compare(read(folders), intersection=True)
    assert len({cell.planned.id for cell in comparison.cells}) == 15


def test_runs_of_one_name_can_be_told_apart(tmp_path):
    sides = read(
        [make_run(tmp_path / "a" / "run", STEADY), make_run(tmp_path / "b" / "run", NEWER)]
    )
    assert [side.name for side in sides] == ["1: run", "2: run"]


def test_what_is_signed_is_verified_first(tmp_path):
    folders = [make_run(tmp_path / "a", STEADY), make_run(tmp_path / "b", NEWER)]
    seal(folders[1], SIGNER)
    assert [side.trust for side in read(folders)] == [Trust.UNSIGNED, Trust.EPHEMERAL]
    (folders[1] / "environment.json").write_text("{}")
    with pytest.raises(VerificationFailed, match=r"environment\.json was changed"):
        read(folders)


def test_a_run_without_records(tmp_path):
    folder = make_run(tmp_path / "a", STEADY)
    (folder / "records.parquet").unlink()
    with pytest.raises(UsageError, match="holds no records"):
        read([folder, folder])
    with pytest.raises(UsageError, match="needs two runs"):
        read([folder])


def test_the_json_holds_every_cell(compared):
    comparison = compared(STEADY, replace(NEWER, queue_ratio=lambda _: 1.5))
    regimes = {regime for cell in comparison.cells for regime in cell.by_regime[0]}
    assert regimes == {Regime.DEVICE}, "only one has a queue"
    assert "| queue |" not in document.to_markdown(comparison)
    data = document.as_document(comparison).model_dump(mode="json")
    assert len(data["cells"]) == len(comparison.cells) == 2 * 2 * 2 * len(LENGTHS)
    assert [run["versions"]["torch"] for run in data["runs"]] == ["2.11.0", "2.13.0"]
    assert data["cells"][0]["later"][0]["difference"] == "same"


def test_runs_in_which_nothing_was_timed(compared):
    nothing = Made(status=lambda length: Status.CRASHED, samples=0)
    assert {len(side.samples) for side in compared(nothing, nothing).sides} == {0}

from dataclasses import replace

import pytest

from nsabench.checks import DeviceLimits, Effect, Finding, controls, run_checks
from nsabench.model.vocabulary import NO_ORDER, Catch, Direction, Mode, Role, Status


def judge(rows, findings):
    return controls.find_failures(controls.set_catches(rows, findings))


def effects(findings):
    return [f.effect for f in findings]


def control(make_row, **fields):
    return make_row("cheat", "control", **{"caught_by": "parity", **fields})


def wrong(make_row, **fields):
    return control(make_row, status=Status.WRONG, reason="mae 0.148", median_ms=None, **fields)


def test_a_caught_control_is_silent(make_row):
    assert judge([wrong(make_row), wrong(make_row, L=64)], []) == []


def test_a_wrong_output_that_only_the_samples_show_is_caught(make_row):
    """Unjoined work may end before its output is read, so that the output is right."""
    row = control(make_row)
    unjoined = Finding("ordering", Effect.WRONG, "x", row.case_id, row.implementation)
    fast = Finding("roofline", Effect.IMPLAUSIBLE, "x", row.case_id, row.implementation)
    assert judge([row], [unjoined]) == []
    assert effects(judge([row], [fast])) == [Effect.INVALID]


@pytest.mark.parametrize("status", [Status.OK, Status.IMPLAUSIBLE])
def test_a_control_that_passes_for_right_once_invalidates_the_run(make_row, status):
    (finding,) = judge([wrong(make_row), control(make_row, L=64, status=status)], [])
    assert (finding.effect, finding.case_id) == (Effect.INVALID, "")
    assert "did not catch the control in 1 of 2 cases" in finding.sentence
    assert "N1024 H8 D128 L64 fp16" in finding.sentence


def test_it_must_be_caught_by_the_check_that_is_meant_for_it(make_row):
    row = control(make_row, caught_by="roofline")
    other = Finding("clocks", Effect.NOTE, "x", row.case_id, row.implementation)
    meant = Finding("roofline", Effect.NOTE, "x", row.case_id, row.implementation)
    elsewhere = Finding("roofline", Effect.NOTE, "x", "another case", row.implementation)
    assert judge([row], [other, elsewhere])
    assert judge([row], [other, meant]) == []
    findings = judge([wrong(make_row, caught_by="roofline")], [])
    assert effects(findings) == [Effect.NOTE, Effect.INVALID]


def test_where_a_control_declines_it_need_not_be_caught(make_row):
    declined = control(make_row, L=64, status=Status.UNSUPPORTED, reason="64 keys are all")
    assert judge([declined, wrong(make_row)], []) == []
    assert judge([declined], []) == []


def test_too_fast_to_be_true_is_not_what_a_slow_host_held_up(make_row):
    """On a busy machine, the look-up of a control may take longer than an honest baseline."""
    baseline = make_row("b", "baseline", 0.129)

    def judged(median_ms, *others, findings=()):
        row = control(make_row, caught_by="roofline", median_ms=median_ms)
        return effects(judge([row, baseline, *others], findings))

    quick = control(make_row, caught_by="roofline", L=64)
    meant = Finding("roofline", Effect.NOTE, "x", quick.case_id, quick.implementation)
    # In another case it was quick and caught: the check works, and a note names this case.
    for median_ms in (0.137, 0.105):
        assert judged(median_ms, quick, findings=[meant]) == [Effect.NOTE]
    # In no case was it quick: nothing shows that the check works.
    assert judged(0.137) == [Effect.NOTE, Effect.INVALID]
    # The control was quick, but no check reported that.
    assert judged(0.1, quick, findings=[meant]) == [Effect.INVALID]
    alone = control(make_row, caught_by="roofline", median_ms=0.137)
    assert effects(judge([alone], [])) == [Effect.INVALID]


def test_a_control_that_crashes_proves_nothing_and_is_said(make_row):
    crashed = control(make_row, status=Status.CRASHED, reason="signal 11", median_ms=None)
    (finding,) = judge([crashed, wrong(make_row, L=64)], [])
    assert finding.effect is Effect.NOTE
    assert "signal 11" in finding.sentence


def test_a_trick_on_the_clock_is_defeated_if_it_gained_nothing(make_row):
    baseline = make_row("b", "baseline", 1.0)

    def judged(median_ms, device="cuda"):
        row = control(make_row, caught_by="timer", median_ms=median_ms, device=device)
        return judge([row, baseline], [])

    assert judged(1.02) == []
    (finding,) = judged(0.5)
    assert finding.effect is Effect.INVALID
    assert "0.5 ms" in finding.sentence
    # On the host's clock, noise must not count as a trick, but a stopped clock must.
    assert judged(0.5, "cpu") == []
    (finding,) = judged(1e-5, "cpu")
    assert finding.effect is Effect.INVALID


@pytest.mark.parametrize("check", ["timer", "baseline"])
def test_without_a_valid_baseline_nothing_is_proven(make_row, check):
    broken = make_row("b", "baseline", 1.0, status=Status.WRONG)
    findings = judge([control(make_row, caught_by=check), broken], [])
    assert effects(findings) == [Effect.NOTE, Effect.INVALID]


def test_a_check_that_no_control_reached_decides_nothing(make_row):
    """All controls of an op crash, so nothing shows that any of its checks works."""
    crashed = [
        control(make_row, L=length, status=Status.CRASHED, reason="signal 11", median_ms=None)
        for length in (64, 128)
    ]
    note, invalid = judge(crashed, [])
    assert (note.effect, invalid.effect) == (Effect.NOTE, Effect.INVALID)
    assert "no control of selection_rows reached the check 'parity'" in invalid.sentence
    # Another control of the same check proves it on another case, but not on another op.
    other = wrong(make_row, L=256)
    assert effects(judge([*crashed, replace(other, implementation="other")], [])) == [Effect.NOTE]
    elsewhere = replace(other, implementation="other", op="selection_varlen")
    assert Effect.INVALID in effects(judge([*crashed, elsewhere], []))


@pytest.mark.parametrize("check", ["timer", "baseline"])
def test_a_trick_is_held_to_what_it_wraps(make_row, check):
    """A matrix that leaves the wrapped baseline out must not make the trick look like a gain."""
    trick = control(make_row, caught_by=check, wraps="quick", median_ms=0.2)
    slow = make_row("slow", "baseline", 1.0)
    assert effects(judge([trick, slow], [])) == [Effect.NOTE, Effect.INVALID]
    quick = make_row("quick", "baseline", 0.2)
    meant = Finding("baseline", Effect.NOTE, "x", trick.case_id, trick.implementation)
    assert judge([trick, slow, quick], [meant]) == []


def test_candidates_are_never_judged_as_controls(make_row):
    findings = judge([make_row(), make_row("b", "baseline", status=Status.WRONG)], [])
    assert effects(findings) == [Effect.UNPROVEN]  # there are no controls


def caught(make_row, check, **fields):
    """Return a control that this check caught, and the check's finding, if there is one."""
    row = control(make_row, caught_by=check, median_ms=1.0, **fields)
    row = replace(row, implementation=f"{check}_{row.mode}_{row.direction}")
    if check == "parity":
        return replace(row, status=Status.WRONG, reason="mae 0.1", comparisons=()), None
    return row, Finding(check, Effect.NOTE, "x", row.case_id, row.implementation)


def all_caught(make_row, **fields):
    pairs = [
        caught(make_row, check, **fields) for check in ("parity", "timer", "baseline", "roofline")
    ]
    rows = [row for row, _ in pairs]
    beside = [make_row("mine", **fields), make_row("b", "baseline", **fields)]
    return [*rows, *beside], [finding for _, finding in pairs if finding]


WAYS = [
    ({"mode": Mode.GRAPH}, "selection_rows in graph mode"),
    ({"direction": Direction.BACKWARD}, "selection_rows backward"),
    ({"op": "selection_varlen"}, "selection_varlen"),
]


@pytest.mark.parametrize(("way", "words"), WAYS)
def test_a_catch_vouches_only_for_what_is_measured_in_its_own_way(make_row, way, words):
    rows, found = all_caught(make_row)
    assert judge(rows, found) == []
    elsewhere = [make_row(case_id="other", **way)]
    (finding,) = judge([*rows, *elsewhere], found)
    assert finding.effect is Effect.UNPROVEN
    assert finding.sentence == (
        f"no control showed that these checks work for {words}: parity, timer, baseline, roofline"
    )
    assert finding.concerns(elsewhere[0]) and not finding.concerns(rows[-1])
    # If controls are also caught there, no finding remains.
    here, found_here = all_caught(make_row, **way)
    assert judge([*rows, *here], [*found, *found_here]) == []


def test_a_check_whose_controls_all_declined_is_unproven(make_row):
    """Controls of the clock decline captured calls, since their tricks need host code."""
    rows, found = all_caught(make_row, mode=Mode.GRAPH)
    declining = [
        replace(r, status=Status.UNSUPPORTED, reason="the trick needs host code")
        if r.caught_by in ("timer", "baseline")
        else r
        for r in rows
    ]
    (finding,) = judge(declining, found)
    assert (finding.effect, finding.case_id, finding.implementation) == (Effect.UNPROVEN, "", "")
    assert finding.sentence == (
        "no control showed that these checks work for selection_rows in graph mode: timer, baseline"
    )
    without = [r for r in declining if r.caught_by != "roofline"]
    (finding,) = judge(without, found)
    assert finding.sentence.endswith(": timer, baseline, roofline")


def test_what_was_never_timed_needs_no_proof_of_its_time(make_row):
    """Without a GPU, the output of a Triton kernel is compared and nothing is timed."""
    rows, found = all_caught(make_row)
    parity = [r for r in rows if r.caught_by in ("parity", "")]
    untimed = [replace(r, comparisons=()) for r in parity if r.role is not Role.BASELINE]
    assert judge(untimed, found) == []


def test_where_a_control_got_stuck_its_own_group_alone_is_not_decided(make_row):
    rows, found = all_caught(make_row)
    crash = {"status": Status.CRASHED, "reason": "signal 11", "median_ms": None}
    stuck = control(make_row, caught_by="timer", mode=Mode.GRAPH, **crash)
    captured = make_row(mode=Mode.GRAPH)
    findings = judge([*rows, stuck, captured], found)
    (invalid,) = [f for f in findings if f.effect is Effect.INVALID]
    assert "selection_rows in graph mode" in invalid.sentence and "'timer'" in invalid.sentence
    assert (
        invalid.concerns(captured) and not invalid.concerns(rows[-1]) and not invalid.is_about_run
    )


def test_ops_that_lack_the_same_share_a_sentence(make_row):
    rows = [replace(make_row(mode=Mode.GRAPH), op=op) for op in ("decode_dense", "decode_step")]
    (finding,) = judge(rows, [])
    assert " work for decode_dense, decode_step in graph mode: " in finding.sentence
    assert {group.op for group in finding.groups} == {"decode_dense", "decode_step"}


def test_controls_are_judged_by_the_other_checks(make_row):
    rows = [
        control(make_row, mae=0.1),
        control(make_row, D=64),
        make_row("slow", "baseline", 5.0, L=128),
        make_row("b", "baseline", 1.0, L=128),
    ]
    assert effects(run_checks(rows, DeviceLimits())[0]) == [
        Effect.INVALID,
        Effect.WRONG,
        Effect.NOTE,
    ]


def test_a_control_is_held_to_what_it_wraps_though_nothing_else_is(make_row):
    wrapped = make_row("wrapped", "baseline", 1.0, alongside=True)
    tricks = {"wraps": "wrapped", "caught_by": "timer"}
    gained = make_row("stopped_clock", "control", 0.01, **tricks)
    gained_nothing = make_row("stopped_clock", "control", 1.0, **tricks)
    assert controls.decide_catch(gained, [wrapped, gained], []) is Catch.MISSED
    assert controls.decide_catch(gained_nothing, [wrapped, gained_nothing], []) is Catch.CAUGHT


@pytest.mark.parametrize(
    ("needs_order", "notes", "caught"),
    [
        (True, "", Catch.MISSED),
        (True, NO_ORDER, Catch.UNPROVEN),
        (False, NO_ORDER, Catch.MISSED),
    ],
)
def test_a_control_of_streams_proves_nothing_if_its_call_waits(
    make_row, needs_order, notes, caught
):
    row = control(make_row, needs_order=needs_order, notes=notes)
    assert controls.decide_catch(row, [row], []) is caught

"""Break-even lengths: the ratio to the best alternative, and the decision from it."""

from dataclasses import replace

import pytest

from nsabench.model.measurement import Bursts, Conditions
from nsabench.model.vocabulary import Catch, Direction, DType, Pays, Reference, Regime, Role, Status
from nsabench.output import answer
from nsabench.verdicts import break_even
from nsabench.verdicts.thresholds_yaml import as_data
from nsabench.verdicts.verdict import compare_records
from tests.runs import record, with_comparison

SHAPE = {"B": 1, "HQ": 64, "H": 4, "D": 128, "Dv": 128, "block": 32, "stride": 16}
SHAPE |= {"block_size": 64, "n_selected": 16, "window": 512}


def made(length, name, role, ratio=None, median_ms=1.0, **more):
    known = {
        "case_id": f"{length}-{more.get('direction', 'forward')}-{more.get('dtype', 'bf16')}",
        "op": "nsa_attention",
        "dtype": DType.BFLOAT16,
        "shape": {**SHAPE, "T": length},
        "length": length,
        "gpu_name": "GPU",
    }
    found = record(name, role, median_ms, **(known | more))
    return found if ratio is None else paying(found, Regime.DEVICE, "dense", ratio, 0.01)


def paying(record, regime, against, ratio, width):
    """Return the record with a ratio to an alternative."""
    found = {"ratio": ratio, "lo": ratio * (1 - width), "hi": ratio * (1 + width)}
    return with_comparison(record, regime, Reference.ALTERNATIVE, against=against, **found)


def ladder(ratios, **more):
    rows = []
    for length, ratio in ratios.items():
        rows.append(made(length, "nsa", Role.CANDIDATE, ratio, **more))
        rows.append(made(length, "dense", Role.ALTERNATIVE, **more))
        rows.append(made(length, "zeros", Role.CONTROL, caught=Catch.CAUGHT, **more))
    return rows


def queued(records, ratios):
    """Return the records with times in the queue, and the controls of the queue."""
    found = []
    for r in records:
        ratio = ratios.get(r.length)
        own = with_comparison(r, Regime.QUEUE, median_ms=2.0)
        if r.role is Role.CANDIDATE and ratio is not None:
            own = paying(own, Regime.QUEUE, "lean", ratio, 0.02)
        found.append(own)
        if r.role is Role.ALTERNATIVE:
            lean = with_comparison(r, Regime.QUEUE, median_ms=1.0)
            found.append(replace(lean, implementation="lean"))
    length = records[0].length
    for name, check in (("slow", "host"), ("hidden", "burst")):
        found.append(made(length, name, Role.CONTROL, caught=Catch.CAUGHT, caught_by=check))
    return found


def only(records):
    [decided] = break_even.decide(records)
    return decided


def spoil_role(role, **fields):
    """Return a series that pays, with changed fields of one role."""
    return [replace(r, **fields) if r.role is role else r for r in ladder({8192: 2.0})]


def test_it_pays_from_the_length_from_which_every_case_does():
    decided = only(ladder({4096: 0.3, 8192: 1.2, 16384: 0.9, 32768: 1.3, 65536: 2.0}))
    assert (decided.answer, decided.length) == (Pays.FROM, 32768)
    assert decided.sentence == "pays from T = 32768"
    assert decided.used == (["nsa"], ["dense"])
    assert decided.summary.endswith("against dense")


MISSED = made(8192, "cheat", Role.CONTROL, caught=Catch.MISSED)
BARE = [r for r in ladder({8192: 2.0}) if r.role is not Role.CONTROL]


@pytest.mark.parametrize(
    ("records", "why"),
    [
        (BARE, "none ran"),
        ([*BARE, made(8192, "zeros", Role.CONTROL, caught=Catch.UNPROVEN)], "none was caught"),
        ([replace(r, device="cpu") for r in ladder({8192: 2.0})], "CPU"),
        (spoil_role(Role.ALTERNATIVE, time_doubt="it does not grow"), "it does not grow"),
        (spoil_role(Role.CANDIDATE, time_doubt="it throttled"), "it throttled"),
        ([*ladder({8192: 2.0}), MISSED], "cheat"),
    ],
)
def test_what_leaves_it_undecided(records, why):
    assert only(records).answer is Pays.NOT_DECIDED
    assert why in only(records).why
    assert "against" not in only(records).summary and why in only(records).sentence


def test_what_pays_at_no_length_says_up_to_which():
    decided = only(ladder({4096: 0.3, 8192: 0.5}))
    assert decided.answer is Pays.NO
    assert "8192" in decided.sentence


def test_alternatives_that_failed_are_named():
    rows = ladder({8192: 2.0})
    for name, status in (("fast", Status.WRONG), ("absent", Status.UNSUPPORTED)):
        rows.append(made(8192, name, Role.ALTERNATIVE, status=status, reason="it failed"))
    assert "fast" in only(rows).why and "absent" not in only(rows).why


HALF = {"dtype": DType.FLOAT16}


@pytest.mark.parametrize(
    ("records", "answer", "length"),
    [
        (ladder({8192: 0.5}), Pays.NO, None),
        (ladder({4096: 0.5, 8192: 0.4}), Pays.NO, None),
        (ladder({4096: 1.5, 8192: 0.9}), Pays.NO, None),
        (ladder({4096: 1.5, 8192: None}), Pays.NOT_DECIDED, None),
        (ladder({4096: None, 8192: 1.5}), Pays.FROM, 8192),
        (ladder({4096: 1.005, 8192: 1.2}), Pays.FROM, 8192),  # the interval reaches 1
        (ladder({4096: 1.5, 8192: 2}) + ladder({4096: 0.7, 8192: 1.1}, **HALF), Pays.FROM, 8192),
        (ladder({4096: 1.5, 8192: 2}) + ladder({4096: 0.7, 8192: 0.9}, **HALF), Pays.NO, None),
    ],
)
def test_the_greatest_length_decides_whether_it_pays(records, answer, length):
    assert (only(records).answer, only(records).length) == (answer, length)


def test_a_direction_and_a_head_layout_are_decided_each_by_itself():
    rows = ladder({8192: 0.5, 16384: 1.5})
    rows += ladder({8192: 1.5, 16384: 2.5}, direction=Direction.BACKWARD)
    few = {**SHAPE, "HQ": 16, "H": 1}
    rows += [replace(r, shape={**few, "T": r.length}) for r in ladder({8192: 0.5, 16384: 0.8})]
    found = {(p.heads, p.direction): p.length for p in break_even.decide(rows)}
    assert found == {
        ("64/4", Direction.FORWARD): 16384,
        ("64/4", Direction.BACKWARD): 8192,
        ("16/1", Direction.FORWARD): None,
    }
    [line] = answer.describe_payments(break_even.decide(rows))
    assert line == (
        "nsa_attention pays by its kernels alone (device): 64/4 forward from T = 16384, "
        "backward from T = 8192; 16/1 forward at no length (up to T = 16384)"
    )


def test_the_best_valid_implementation_stands_for_the_op():
    slow = made(8192, "torch_nsa", Role.BASELINE, 0.1, median_ms=9.0)
    wrong = made(8192, "broken", Role.CANDIDATE, status=Status.WRONG)
    assert only([*ladder({8192: 1.5}), slow, wrong]).length == 8192
    [nsa, *others] = ladder({8192: 1.5})
    failed = replace(nsa, status=Status.WRONG, comparisons=())
    assert only([failed, *others, slow]).tested[0].record.implementation == "torch_nsa"


def test_an_op_without_alternatives_is_not_asked():
    assert break_even.decide([made(8192, "nsa", Role.CANDIDATE)]) == []


def test_a_case_without_an_alternative_is_not_tested():
    control = made(512, "nsa", Role.CANDIDATE, direction=Direction.STEP)
    rows = ladder({8192: 0.6, 16384: 1.2})
    decided = only([*rows, control, made(32768, "nsa", Role.CANDIDATE)])
    assert (decided.direction, decided.length) == (Direction.FORWARD, 16384)
    assert [cell.length for cell in decided.tested] == [8192, 16384]


def test_the_ratio_is_to_the_fastest_valid_alternative_of_the_same_session():
    records = compare_records(
        [
            record("nsa", Role.CANDIDATE, 2.0),
            record("torch_nsa", Role.BASELINE, 8.0),
            record("slow", Role.ALTERNATIVE, 6.0),
            record("dense", Role.ALTERNATIVE, 3.0),
            record("wrong", Role.ALTERNATIVE, status=Status.WRONG),
            record("elsewhere", Role.ALTERNATIVE, 1.0, attempt=2),
            record("left_early", Role.ALTERNATIVE, 1.0, n_samples=5),
            record("cheat", Role.CONTROL, 0.1),
        ],
        (),
    )
    found = {
        r.implementation: (best.against, best.ratio)
        for r in records
        if (best := r.compared(Regime.DEVICE, Reference.ALTERNATIVE))
    }
    assert found == {
        "nsa": ("dense", pytest.approx(1.5)),
        "torch_nsa": ("dense", pytest.approx(3 / 8)),
    }


def test_under_the_power_cap_a_ratio_may_be_off_by_as_much_as_the_clock_moved():
    capped = Conditions(
        clock_event_reasons=["sw_power_cap"], sm_clock_mhz_min=1584, sm_clock_mhz_max=1980
    )
    records = [
        record("nsa", Role.CANDIDATE, 1.0, conditions=capped),
        record("dense", Role.ALTERNATIVE, 1.5, conditions=capped),
    ]
    found = compare_records(records, ())[0].comparison(Regime.DEVICE, Reference.ALTERNATIVE)
    assert (found.ratio, found.lo, found.hi) == pytest.approx((1.5, 1.2, 1.875), rel=0.02)


def test_the_queue_is_a_decision_of_its_own():
    rows = queued(ladder({8192: 1.5, 16384: 2.0}), {8192: 0.6, 16384: 1.4})
    in_queue, on_device = break_even.decide(rows)
    assert (in_queue.regime, in_queue.length) == (Regime.QUEUE, 16384)
    assert in_queue.used == (["nsa"], ["lean"])
    assert (on_device.regime, on_device.length) == (Regime.DEVICE, 8192)
    assert [data["regime"] for data in as_data([], [in_queue, on_device])["pays"]] == [
        "queue",
        "device",
    ]
    assert list(answer.describe_payments([in_queue, on_device])) == [
        "nsa_attention pays from Python (queue): 64/4 forward from T = 16384",
        "nsa_attention pays by its kernels alone (device): 64/4 forward from T = 8192",
    ]


def test_a_control_of_the_queue_that_got_away_or_never_ran_decides_nothing_there():
    rows = queued(ladder({8192: 2.0}), {8192: 2.0})
    assert [p.answer for p in break_even.decide(rows)] == [Pays.FROM, Pays.FROM]
    missed = [replace(r, caught=Catch.MISSED) if r.caught_by == "host" else r for r in rows]
    assert [p.answer for p in break_even.decide(missed)] == [Pays.NOT_DECIDED, Pays.FROM]
    without = [r for r in rows if r.caught_by != "burst"]
    in_queue, _ = break_even.decide(without)
    assert in_queue.answer is Pays.NOT_DECIDED and "burst" in in_queue.why
    # Without a ratio in the queue, only the device has a break-even length.
    assert [p.regime for p in break_even.decide(queued(ladder({8192: 2.0}), {}))] == [Regime.DEVICE]


def test_the_ratio_in_the_queue_is_of_bursts_and_of_its_own_best():
    nsa = record("nsa", Role.CANDIDATE, 2.0, 6.0)
    dense = record("dense", Role.ALTERNATIVE, 3.0, 9.0)
    lean = record("lean", Role.ALTERNATIVE, 8.0, 3.0, n_samples=5)
    found = compare_records([nsa, dense, lean], ())[0].comparison(
        Regime.QUEUE, Reference.ALTERNATIVE
    )
    assert (found.against, found.ratio) == ("lean", pytest.approx(0.5))
    few = record("lean", Role.ALTERNATIVE, 8.0, bursts=Bursts(calls=[2] * 4, time_ms=[3.0] * 4))
    assert (
        compare_records([nsa, dense, few], ())[0].compared(Regime.QUEUE, Reference.ALTERNATIVE)
        is None
    )

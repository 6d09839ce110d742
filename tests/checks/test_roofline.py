"""Times that are impossible or unlikely on a device are found."""

from dataclasses import replace

import pytest

from nsabench.checks import DeviceLimits, Effect
from nsabench.checks.roofline import check_baseline, check_cliff, check_roofline, check_scaling
from nsabench.model.measurement import Ceilings
from nsabench.model.vocabulary import Regime, Status
from tests.runs import with_comparison

H200 = DeviceLimits("measured in this run", memory_gb_s=4250.0, l2_gb_s=6200.0)
BUSY_H200 = replace(H200, tflop_s={"float16": 790.0})
RTX4090 = DeviceLimits(
    "data sheet", memory_gb_s=1008.0, l2_gb_s=5000.0, l2_bytes=72 << 20, margin=1.05
)


def queued(record, ms):
    return with_comparison(record, Regime.QUEUE, median_ms=ms)


def test_faster_than_memory_is_implausible(make_row):
    (finding,) = check_roofline([make_row(median_ms=0.115)], H200)  # 541 MB: 4.7 TB/s
    assert finding.effect is Effect.IMPLAUSIBLE
    assert "0.115 ms is 1.11 times faster than possible" in finding.sentence
    assert "4250 GB/s" in finding.sentence


@pytest.mark.parametrize("ms", [0.1362, 0.12])
def test_honest_times_pass(make_row, ms):
    assert check_roofline([make_row(median_ms=ms)], H200) == []


def test_among_others_nobody_is_faster_than_the_arithmetic(make_row):
    """A call that waits for its host is slow alone, but not when calls are queued back to back."""
    limits = DeviceLimits("measured in this run", tflop_s={"float16": 100.0})
    row = make_row(L=1024, median_ms=0.045)  # 4.3 GFLOP: 0.043 ms
    assert check_roofline([queued(row, 0.0391)], limits) == []  # within the margin
    (finding,) = check_roofline([queued(row, 0.02)], limits)
    assert finding.effect is Effect.IMPLAUSIBLE
    assert "0.02 ms a call, back to back, is 2.15 times faster" in finding.sentence
    both = queued(with_comparison(row, median_ms=0.02), 0.02)
    assert "0.02 ms is 2.15 times faster" in check_roofline([both], limits)[0].sentence


def test_among_others_inputs_may_come_from_l2(make_row):
    row = make_row(median_ms=0.14)  # 541 MB: 0.127 ms from memory, and 0.087 through L2
    assert check_roofline([queued(row, 0.1)], H200) == []
    assert "through an L2" in check_roofline([queued(row, 0.07)], H200)[0].sentence
    unknown = DeviceLimits(memory_gb_s=4250.0)  # the rate of its L2 is unknown
    assert check_roofline([queued(row, 0.01)], unknown) == []


def test_a_flushed_l2_gives_nothing_and_a_warm_one_its_size(make_row):
    small = make_row(N=256, L=512, median_ms=0.020)  # 68 MB in 72 MiB of L2
    assert check_roofline([small], RTX4090) == []
    assert check_roofline([small], DeviceLimits(memory_gb_s=1008.0))
    assert check_roofline(
        [make_row(N=256, L=512, median_ms=0.010)], RTX4090
    )  # faster than L2 allows


def test_beyond_the_l2_the_rest_comes_from_memory(make_row):
    assert check_roofline([make_row(L=256, median_ms=0.064)], RTX4090) == []
    assert check_roofline([make_row(L=512, median_ms=0.064)], RTX4090)


def test_faster_than_the_arithmetic(make_row):
    limits = DeviceLimits(tflop_s={"float16": 100.0})
    row = make_row(L=1024, median_ms=0.03)  # 4.3 GFLOP: 0.043 ms
    assert "GFLOP at 100 TFLOP/s" in check_roofline([row], limits)[0].sentence
    assert check_roofline([make_row(dtype="bfloat16", median_ms=0.03)], limits) == []


def test_faster_than_an_empty_call(make_row):
    limits = DeviceLimits(timer_floor_ms=0.002)
    assert "empty call" in check_roofline([make_row(median_ms=0.0005)], limits)[0].sentence
    assert check_roofline([make_row(median_ms=0.0021)], limits) == []


def test_without_ceilings_and_without_times_nothing_is_held(make_row):
    assert check_roofline([make_row(median_ms=1e-9)], DeviceLimits()) == []
    failed = make_row(median_ms=1e-9, status=Status.WRONG)
    assert check_roofline([failed, make_row(median_ms=None)], H200) == []


def test_float32_on_tensor_cores_is_possible(make_row):
    """A float32 product can be three TF32 products, here at 125 TFLOP/s instead of 50."""
    rates = {"float16": 740.0, "bfloat16": 750.0, "float32": 50.0}
    limits = DeviceLimits.from_run(Ceilings(copy_gb_s=1e6, tflop_s=rates))
    row = make_row(N=8192, dtype="float32")
    assert check_roofline([with_comparison(row, median_ms=row.flops / 110e9)], limits) == []
    assert check_roofline([with_comparison(row, median_ms=row.flops / 160e9)], limits) != []
    assert limits.tflop_s == rates
    alone = DeviceLimits.from_run(Ceilings(tflop_s={"float32": 50.0}))
    assert check_roofline([with_comparison(row, median_ms=row.flops / 60e9)], alone) != []


# --- Baselines that are too slow for a speed-up

SMALL = {"N": 256, "H": 4, "D": 64, "L": 64}
LOOP = ("loop", "baseline", 42.0, {**SMALL, "gap_hidden_share": 0.0})


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        (  # a sleeping wrapper is not the best baseline
            [
                ("sleeping", "control", 5.3, {}),
                ("expand", "baseline", 0.4727, {}),
                ("gqa", "baseline", 0.1368, {}),
                ("mine", "candidate", 9.0, {}),
            ],
            [("sleeping", Effect.NOTE), ("expand", Effect.NOTE)],
        ),
        (  # a baseline alongside shows that others are slow, but no candidate is compared with it
            [
                ("sleeping", "control", 9.0, SMALL),
                LOOP,
                ("wrapped", "baseline", 0.02, {**SMALL, "alongside": True}),
                ("mine", "candidate", 0.02, SMALL),
            ],
            [("sleeping", Effect.NOTE), ("loop", Effect.NOTE), ("", Effect.INCONCLUSIVE)],
        ),
        (  # wrong baselines do not count
            [
                ("slow", "baseline", 5.0, {}),
                ("wrong", "baseline", 0.01, {"mae": 0.1}),
                ("failed", "baseline", 0.01, {"status": Status.WRONG}),
            ],
            [("", Effect.NOTE)],
        ),
        ([LOOP, ("mine", "candidate", 0.02, SMALL)], [("", Effect.INCONCLUSIVE)]),
        # Masked attention over all keys is slow on short spans, and may be the best baseline of an
        # op.
        ([("masked", "baseline", 42.0, SMALL)], [("", Effect.NOTE)]),
        ([("launch_bound", "baseline", 0.0137, SMALL)], []),
    ],
)
def test_slow_baselines(make_row, rows, found):
    records = [make_row(name, role, ms, **fields) for name, role, ms, fields in rows]
    findings = check_baseline(records, BUSY_H200)
    assert [(f.implementation, f.effect) for f in findings] == found


@pytest.mark.parametrize("limits", [DeviceLimits(), DeviceLimits(memory_gb_s=37.0)])
def test_without_a_compute_rate_no_baseline_is_called_slow(make_row, limits):
    assert check_baseline([make_row("loop", "baseline", 42.0, **SMALL)], limits) == []


# --- Times along a length series

WARM_4090 = DeviceLimits("data sheet", memory_gb_s=1008.0, l2_gb_s=5000.0, l2_bytes=72 << 20)
UNKNOWN = DeviceLimits()
LENGTHS = (64, 128, 256, 512, 1024)


def series(make_row, times, name="flex_attention", role="baseline", **fields):
    return [
        make_row(name, role, median_ms=t, L=n, **fields)
        for n, t in zip(LENGTHS, times, strict=False)
    ]


def test_a_baseline_that_is_no_longer_compiled_leaves_its_cases_open(make_row):
    """The case after the leap and those that follow are in doubt, until one is faster than the
    first of them."""
    rows = series(make_row, [0.0103, 0.0128, 3.09, 4.04, 0.03])
    rows += series(make_row, [0.02] * 5, "sdpa")
    first, second = check_cliff(rows, UNKNOWN)
    assert {first.effect, second.effect} == {Effect.INCONCLUSIVE}
    assert [first.case_id, second.case_id] == [rows[2].case_id, rows[3].case_id]
    assert first.implementation == second.implementation == ""
    assert "0.0128 ms at L=128 but 3.09 ms at L=256" in first.sentence
    assert first.sentence == second.sentence


FLEX, LEAP = "flex_attention", [0.1, 0.1, 10.0]


@pytest.mark.parametrize(
    ("arms", "limits", "found"),
    [
        ([(FLEX, "baseline", LEAP), ("sdpa", "baseline", [0.02] * 3)], UNKNOWN, [Effect.NOTE]),
        ([("mine", "candidate", LEAP)], UNKNOWN, [Effect.NOTE]),
        ([("sleeper", "control", LEAP)], UNKNOWN, []),
        ([(FLEX, "baseline", [0.02, 0.06, 0.24, 0.96, 3.84])], UNKNOWN, []),  # L squared
        ([(FLEX, "baseline", [0.01, 0.01, 0.04, 0.3, 0.3])], UNKNOWN, []),  # new kernel
        # An impossible time has its own finding, and is not compared with the honest next one.
        ([(FLEX, "baseline", [1e-5, 0.05, 0.1])], UNKNOWN, [Effect.INCONCLUSIVE] * 2),
        ([(FLEX, "baseline", [1e-5, 0.05, 0.1])], H200, []),
        ([(FLEX, "baseline", [0.0, 0.05, 0.1])], UNKNOWN, []),
        ([(FLEX, "baseline", [1e-4, 0.05, 0.1])], DeviceLimits(timer_floor_ms=0.002), []),
        # A baseline that cheats does not make the honest one irrelevant.
        (
            [(FLEX, "baseline", [0.05, 0.05, 10.0]), ("cheat", "baseline", [1e-5] * 3)],
            H200,
            [Effect.INCONCLUSIVE],
        ),
    ],
)
def test_cliffs(make_row, arms, limits, found):
    rows = [row for name, role, times in arms for row in series(make_row, times, name, role)]
    assert [f.effect for f in check_cliff(rows, limits)] == found


@pytest.mark.parametrize(
    ("times", "fields", "limits", "found"),
    [
        ([0.114, 0.115, 0.115, 0.115, 0.115], {}, H200, [Effect.IMPLAUSIBLE]),
        ([0.114, 0.115, 0.115, 0.115], {}, H200, [Effect.INCONCLUSIVE]),  # flat yet possible
        ([0.1142, 0.13, 0.1878, 0.29, 0.4727], {}, H200, []),  # K and V expanded over heads
        ([0.0300, 0.035, 0.0487, 0.08, 0.1388], {}, H200, []),  # heads as queries
        ([0.0177, 0.02, 0.0452, 0.07, 0.1362], {}, H200, []),  # a kernel at 93 % of bandwidth
        ([1.0, 1.0, 1.0, 1.0, 1.0], {}, H200, []),  # slow for another reason
        ([0.0117] * 4, {"N": 256, "H": 4, "D": 64}, H200, []),  # bound by its launch
        ([0.020] * 4, {"N": 256}, WARM_4090, [Effect.INCONCLUSIVE]),  # a warm L2 may explain it
        ([0.064] * 5, {}, WARM_4090, [Effect.IMPLAUSIBLE]),
        ([0.064] * 5, {}, UNKNOWN, [Effect.NOTE]),
    ],
)
def test_flat_times(make_row, times, fields, limits, found):
    findings = check_scaling(series(make_row, times, **fields), limits)
    assert [f.effect for f in findings] == found
    assert all("L=64" in f.sentence for f in findings)


def test_only_records_that_differ_in_nothing_but_length_are_compared(make_row):
    rows = [
        make_row(L=64, median_ms=0.115),
        make_row(L=1024, median_ms=0.115, dtype="bfloat16"),
        make_row(L=1024, median_ms=0.115, H=4),
        make_row("other", L=1024, median_ms=0.115),
    ]
    assert check_scaling(rows, H200) == []

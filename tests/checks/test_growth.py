"""Times along a length series: cliffs, and times that stay flat."""

import pytest

from nsabench.checks import DeviceLimits, Effect
from nsabench.checks.roofline import check_cliff, check_scaling

H200 = DeviceLimits("measured in this run", memory_gb_s=4250.0)
WARM_4090 = DeviceLimits("data sheet", memory_gb_s=1008.0, l2_gb_s=5000.0, l2_bytes=72 << 20)
UNKNOWN = DeviceLimits()
LENGTHS = (64, 128, 256, 512, 1024)


def series(make_row, times, name="flex_attention", role="baseline", **fields):
    return [
        make_row(name, role, median_ms=t, L=n, **fields)
        for n, t in zip(LENGTHS, times, strict=False)
    ]


def test_a_baseline_that_is_no_longer_compiled_leaves_its_cases_open(make_row):
    """The third length and all that follow are in doubt, until the time is as before."""
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
        ([(FLEX, "baseline", [0.02, 0.06, 0.24, 0.96, 3.84])], UNKNOWN, []),  # the square
        ([(FLEX, "baseline", [0.01, 0.01, 0.04, 0.3, 0.3])], UNKNOWN, []),  # another kernel
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

import pytest

from nsabench.checks import DeviceLimits, Effect
from nsabench.checks.growth import check_cliff

LENGTHS = (64, 128, 256, 512, 1024)


def ladder(make_row, times, name="flex_attention", role="baseline", **fields):
    return [
        make_row(name, role, median_ms=t, L=n, **fields)
        for n, t in zip(LENGTHS, times, strict=False)
    ]


def test_a_baseline_that_is_no_longer_compiled_leaves_its_cases_open(make_row):
    """The third shape of the ladder and all that follow, until it is itself again."""
    rows = ladder(make_row, [0.0103, 0.0128, 3.09, 4.04, 0.03])
    rows += ladder(make_row, [0.02] * 5, "sdpa")
    findings = check_cliff(rows, DeviceLimits())
    assert [(f.effect, f.case_id, f.implementation) for f in findings] == [
        (Effect.INCONCLUSIVE, rows[2].case_id, ""),
        (Effect.INCONCLUSIVE, rows[3].case_id, ""),
    ]
    assert "flex_attention takes 0.0128 ms at L=128 but 3.09 ms at L=256" in findings[0].sentence
    assert findings[1].sentence == findings[0].sentence
    assert "241 times as long for 2.0 times the work" in findings[0].sentence


def test_a_baseline_that_was_out_of_the_running_is_a_note(make_row):
    rows = ladder(make_row, [0.1, 0.1, 10.0]) + ladder(make_row, [0.02] * 3, "sdpa")
    [finding] = check_cliff(rows, DeviceLimits())
    assert (finding.effect, finding.implementation) == (Effect.NOTE, "flex_attention")


def test_a_candidate_that_leaps_is_told_so(make_row):
    [finding] = check_cliff(ladder(make_row, [0.1, 0.1, 10.0], "mine", "candidate"), DeviceLimits())
    assert (finding.effect, finding.implementation) == (Effect.NOTE, "mine")


def test_controls_are_left_to_their_own_checks(make_row):
    assert (
        check_cliff(ladder(make_row, [0.1, 0.1, 10.0], "sleeper", "control"), DeviceLimits()) == []
    )


@pytest.mark.parametrize(
    "times",
    [
        [0.02, 0.06, 0.24, 0.96, 3.84],  # as the square of the length
        [0.01, 0.01, 0.04, 0.3, 0.3],  # an unaligned length, another kernel
    ],
)
def test_honest_growth_passes(make_row, times):
    assert check_cliff(ladder(make_row, times), DeviceLimits()) == []


def test_a_foot_that_cannot_be_is_none(make_row):
    """An impossible time has its own finding; it must not condemn the honest one after it."""
    rows = ladder(make_row, [1e-5, 0.05, 0.1])
    assert len(check_cliff(rows, DeviceLimits())) == 2
    assert check_cliff(rows, DeviceLimits(memory_gb_s=4250.0)) == []


def test_a_baseline_that_cheats_does_not_put_the_honest_one_out_of_the_running(make_row):
    rows = ladder(make_row, [0.05, 0.05, 10.0]) + ladder(make_row, [1e-5] * 3, "cheat")
    [finding] = [
        f for f in check_cliff(rows, DeviceLimits(memory_gb_s=4250.0)) if f.check == "cliff"
    ]
    assert finding.effect is Effect.INCONCLUSIVE


def test_a_clock_that_stands_still_gives_no_foot(make_row):
    assert check_cliff(ladder(make_row, [0.0, 0.05, 0.1]), DeviceLimits()) == []
    assert (
        check_cliff(ladder(make_row, [1e-4, 0.05, 0.1]), DeviceLimits(timer_floor_ms=0.002)) == []
    )

import pytest

from nsabench.checks import DeviceLimits, Effect
from nsabench.checks.growth import check_scaling

H200 = DeviceLimits("measured in this run", memory_gb_s=4250.0)
WARM_4090 = DeviceLimits("data sheet", memory_gb_s=1008.0, l2_gb_s=5000.0, l2_bytes=72 << 20)
LENGTHS = (64, 128, 256, 512, 1024)


def ladder(make_row, times, lengths=LENGTHS, **fields):
    return [make_row(median_ms=t, L=n, **fields) for n, t in zip(lengths, times, strict=True)]


def test_a_baseline_that_reads_the_first_64_keys_is_found(make_row):
    (finding,) = check_scaling(ladder(make_row, [0.114, 0.115, 0.115, 0.115, 0.115]), H200)
    assert finding.effect is Effect.IMPLAUSIBLE
    assert "L=64" in finding.sentence
    assert "L=1024" in finding.sentence
    assert "14.3 times the bytes" in finding.sentence


def test_flat_yet_possible_is_inconclusive(make_row):
    (finding,) = check_scaling(ladder(make_row, [0.114, 0.115, 0.115, 0.115], LENGTHS[:4]), H200)
    assert finding.effect is Effect.INCONCLUSIVE


@pytest.mark.parametrize(
    "times",
    [
        [0.1142, 0.13, 0.1878, 0.29, 0.4727],  # K and V expanded over heads
        [0.0300, 0.035, 0.0487, 0.08, 0.1388],  # heads as queries
        [0.0177, 0.02, 0.0452, 0.07, 0.1362],  # a kernel at 93 % of bandwidth
        [1.0, 1.0, 1.0, 1.0, 1.0],  # slow for a reason of its own: the work is lost in it
    ],
)
def test_honest_ladders_pass(make_row, times):
    assert check_scaling(ladder(make_row, times), H200) == []


def test_launch_bound_ladders_pass(make_row):
    rows = ladder(make_row, [0.0117] * 4, LENGTHS[:4], N=256, H=4, D=64)
    assert check_scaling(rows, H200) == []


def test_a_warm_l2_is_given_the_benefit_of_the_doubt_where_it_suffices(make_row):
    (small,) = check_scaling(ladder(make_row, [0.020] * 4, LENGTHS[:4], N=256), WARM_4090)
    assert small.effect is Effect.INCONCLUSIVE
    assert "only a warm L2" in small.sentence
    (large,) = check_scaling(ladder(make_row, [0.064] * 5), WARM_4090)
    assert large.effect is Effect.IMPLAUSIBLE


def test_without_ceilings_it_is_a_note(make_row):
    (finding,) = check_scaling(ladder(make_row, [0.064] * 5), DeviceLimits())
    assert finding.effect is Effect.NOTE


def test_only_rows_that_differ_in_nothing_but_length_are_compared(make_row):
    rows = [
        make_row(L=64, median_ms=0.115),
        make_row(L=1024, median_ms=0.115, dtype="bfloat16"),
        make_row(L=1024, median_ms=0.115, H=4),
        make_row("other", L=1024, median_ms=0.115),
    ]
    assert check_scaling(rows, H200) == []

import pytest

from nsabench.checks import DeviceLimits, Effect
from nsabench.checks.roofline import check_roofline
from nsabench.model.measurement import Ceilings
from nsabench.model.record import Record
from nsabench.model.vocabulary import Regime, Status
from tests.runs import with_comparison

H200 = DeviceLimits("measured in this run", memory_gb_s=4250.0, l2_gb_s=6200.0)
RTX4090 = DeviceLimits(
    "data sheet", memory_gb_s=1008.0, l2_gb_s=5000.0, l2_bytes=72 << 20, margin=1.05
)


def queued(record: Record, ms: float) -> Record:
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
    unknown = DeviceLimits(memory_gb_s=4250.0)  # how fast its L2 is, it does not say
    assert check_roofline([queued(row, 0.01)], unknown) == []


def test_a_flushed_l2_gives_nothing_and_a_warm_one_its_size(make_row):
    small = make_row(N=256, L=512, median_ms=0.020)  # 68 MB in 72 MiB of L2
    assert check_roofline([small], RTX4090) == []
    assert check_roofline([small], DeviceLimits(memory_gb_s=1008.0))
    assert check_roofline(
        [make_row(N=256, L=512, median_ms=0.010)], RTX4090
    )  # not even L2 does that


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
    """Three TF32 products: 125 TFLOP/s on a device whose float32 matmul reaches 50."""
    rates = {"float16": 740.0, "bfloat16": 750.0, "float32": 50.0}
    limits = DeviceLimits.from_run(Ceilings(copy_gb_s=1e6, tflop_s=rates))
    row = make_row(N=8192, dtype="float32")
    assert check_roofline([with_comparison(row, median_ms=row.flops / 110e9)], limits) == []
    assert check_roofline([with_comparison(row, median_ms=row.flops / 160e9)], limits) != []
    assert limits.tflop_s == rates
    alone = DeviceLimits.from_run(Ceilings(tflop_s={"float32": 50.0}))
    assert check_roofline([with_comparison(row, median_ms=row.flops / 60e9)], alone) != []

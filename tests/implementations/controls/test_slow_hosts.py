"""The controls of the regime `queue`."""

import time
from random import Random

import pytest
import torch

from nsabench import registry
from nsabench.checks import DeviceLimits, run_checks
from nsabench.checks.controls import decide_catch
from nsabench.checks.timing import IN_A_BURST, check_burst, check_host
from nsabench.failure import Failure
from nsabench.implementations.controls import slow
from nsabench.model.vocabulary import Catch, DType, Regime, Status, Verdict
from nsabench.verdicts.verdict import compare_records
from nsabench.worker.timing.timer import CpuTimer
from tests.checking import a_case, arm_of, sets_of
from tests.checks.conftest import make_row  # noqa: F401 - a fixture
from tests.implementations.controls.test_every_op import SHAPES

CASE = a_case("selection_rows", SHAPES["selection_rows"], dtype=DType.BFLOAT16)
FULL = {"median_ms": 18.4, "host_us": None, "queued_ms": 11.7, "launches": 1388}
items = {i.name: i for i in registry.load() if i.op == CASE.op}


def my_arm(name):
    return arm_of(items[name], CASE, sets_of(CASE), Random(0))


def test_work_is_hidden_only_in_a_burst():
    arm, timer = my_arm("hidden_in_a_thread"), CpuTimer()
    arm.check()
    for round_ in range(3):
        _, result = timer.sample(arm.name, arm.prepare(round_))
        arm.inspect(round_, result)
    with pytest.raises(Failure) as caught:
        arm.burst(timer, 20)
    assert caught.value.status is Status.WRONG
    assert caught.value.reason.startswith(IN_A_BURST)


def test_a_burst_reads_outputs_before_a_thread_can_write_them():
    written = torch.zeros(1)

    def later(result):
        seen = result.clone()
        written.fill_(1)
        return seen

    _, seen = CpuTimer().burst([lambda: written] * 3, 2, later)
    assert float(seen) == 0 and float(written) == 1


@pytest.mark.parametrize("name", ["needless_python", "thousand_launches"])
def test_controls_of_the_host_are_right_and_slow(name):
    item = items[name]
    honest = items["sdpa_gqa"].call
    inputs = sets_of(CASE).sets[0]
    given = [t.detach() for t in inputs.tensors.values()]
    start = time.perf_counter()
    out = item.call(*given, **inputs.options)
    assert time.perf_counter() - start >= slow.NEEDLESS_S
    torch.testing.assert_close(out, honest(*given, **inputs.options))


@pytest.mark.parametrize(
    ("fields", "became"),
    [
        ({"median_ms": 0.01, "host_us": 240.0, "queued_ms": 0.23}, Catch.CAUGHT),
        ({"median_ms": 0.01, "host_us": 240.0, "queued_ms": 0.0105}, Catch.MISSED),
        ({"median_ms": 0.5, "host_us": 240.0, "queued_ms": 0.5}, Catch.DECLINED),
        ({"median_ms": 0.01, "host_us": 240.0, "queued_ms": None}, Catch.UNPROVEN),
        # 1388 launches fill the device's queue, so the time on the device holds gaps between
        # kernels.
        ({**FULL, "kernels_us": 4900.0}, Catch.CAUGHT),
        ({**FULL, "kernels_us": 11600.0}, Catch.DECLINED),
        ({**FULL, "kernels_us": None}, Catch.UNPROVEN),
        ({"median_ms": None, "status": Status.CRASHED, "reason": "r"}, Catch.UNPROVEN),
    ],
)
def test_a_slow_host_is_caught_by_host(make_row, fields, became):  # noqa: F811
    row = make_row("needless_python", "control", caught_by="host", **fields)
    assert decide_catch(row, [row], check_host([row], DeviceLimits())) is became


@pytest.mark.parametrize(
    ("fields", "became"),
    [
        ({"status": Status.WRONG, "reason": f"{IN_A_BURST}MAE 1"}, Catch.CAUGHT),
        ({"status": Status.WRONG, "reason": "MAE 1"}, Catch.UNPROVEN),
        ({"median_ms": 0.01, "host_us": 9.0, "queued_ms": 0.001}, Catch.MISSED),
        ({"median_ms": 5.0, "host_us": 9.0, "queued_ms": 5.0}, Catch.DECLINED),
    ],
)
def test_hidden_work_is_caught_in_a_burst(make_row, fields, became):  # noqa: F811
    row = make_row("hidden_in_a_thread", "control", caught_by="burst", **fields)
    assert decide_catch(row, [row], check_burst([row], DeviceLimits())) is became


@pytest.mark.parametrize(
    ("kernels_us", "decided"), [(4900.0, True), (None, False), (11600.0, True)]
)
def test_a_queue_whose_control_was_not_caught_decides_nothing(
    make_row,  # noqa: F811
    kernels_us: float | None,
    decided: bool,
) -> None:
    """The only control of the check is caught, unproven or declined."""
    slow = {"median_ms": 0.1, "host_us": 20.0, "queued_ms": 0.1}
    best = {"median_ms": 0.2, "host_us": 20.0, "queued_ms": 0.2}
    rows = [
        make_row("mine", "candidate", **slow),
        make_row("best", "baseline", **best),
        make_row("x", "control", caught_by="host", **FULL, kernels_us=kernels_us),
    ]
    findings, rows = run_checks(rows, DeviceLimits())
    mine, *_ = compare_records(rows, findings)
    verdicts = [mine.comparison(regime).verdict for regime in (Regime.DEVICE, Regime.QUEUE)]
    assert verdicts == [Verdict.FASTER, Verdict.FASTER if decided else Verdict.INVALID]

"""The regime `queue` on a CUDA device: bursts, counted launches, equal arms and controls."""

import statistics
import time
from random import Random

import pytest
import torch

from nsabench import registry
from nsabench.model.case import Timing
from nsabench.model.vocabulary import DType, Regime, Role, Status, Verdict
from nsabench.verdicts.statistics import ratio_of_medians
from nsabench.verdicts.tables import read_records
from nsabench.verdicts.verdict import decide_verdict
from nsabench.worker.timing import cuda, sampling
from nsabench.worker.timing.cuda import CudaTimer
from tests.checking import a_case, arm_of, sets_of
from tests.gpu.test_bench_on_cuda import run

pytestmark = pytest.mark.gpu


CALLS, PAIRS = 100, 25
ROWS = {"N": 1024, "H": 8, "D": 128, "Dv": 128}
BLOCKS = {"B": 1, "HQ": 32, "H": 8, "D": 128, "Dv": 128, "S": 16, "block_size": 64}
CASES = (
    *(
        ("selection_rows", name, ROWS | {"L": n})
        for name in ("sdpa_gqa", "rows")
        for n in (64, 256)
    ),
    *(("selection_blocks", "blocks", BLOCKS | {"T": n}) for n in (2048, 8192)),
)


def plain_ms(item, sets):
    """Return the time of a call (ms) in a loop over the input sets, which waits for the device only
    at its ends."""
    tensors = [list(inputs.tensors.values()) for inputs in sets.sets]
    options = sets.sets[0].options
    torch.cuda.synchronize()
    start = time.perf_counter()
    for i in range(CALLS):
        out = item.call(*tensors[i % len(tensors)], **options)
    torch.cuda.synchronize()
    taken = time.perf_counter() - start
    del out
    return taken * 1e3 / CALLS


@pytest.mark.parametrize(("op", "name", "shape"), CASES)
def test_a_burst_reads_what_a_plain_loop_takes(op, name, shape):
    """Bursts and loops take turns. The median of their ratios is within 5 % of 1."""
    items = {i.name: i for i in registry.load() if i.op == op}
    chosen = name if name in items else next(n for n in items if n.startswith(name))
    case = a_case(op, shape, dtype=DType.BFLOAT16, timing=Timing(rotate=2))
    sets = sets_of(case, "cuda")
    arm, timer = arm_of(items[chosen], case, sets, Random(0)), CudaTimer()
    pairs = [(arm.burst(timer, CALLS), plain_ms(items[chosen], sets)) for _ in range(PAIRS)][3:]
    ratio = statistics.median(a / b for a, b in pairs)
    burst = statistics.median(a for a, _ in pairs)
    print(f"\n{chosen} {shape}: {1e3 * burst:.1f} us a call, {ratio:.3f} of a plain loop")
    assert 0.95 <= ratio <= 1.05


def loop_us(call, calls=2000):
    """Return the time of a call in a plain loop."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e6 / calls


def test_launches_are_counted_and_leave_the_host_as_it_was():
    """After CUPTI has counted, a plain loop takes as long as before, within 10 %."""
    x, y = (torch.ones(1000, device="cuda") for _ in range(2))

    def three():
        x.add_(1)
        y.copy_(x)
        y.zero_()

    def prepared():
        torch.ones(10, device="cuda")  # a launch of the preparation does not count
        return three

    def alone():
        return lambda: x.add_(1)

    for _ in range(3):
        loop_us(three)
    before = statistics.median(loop_us(three) for _ in range(9))
    counted = cuda.count_launches({"three": prepared, "one": alone, "none": lambda: lambda: None})
    assert {name: one.launches for name, one in counted.items()} == {
        "three": 3,
        "one": 1,
        "none": 0,
    }
    # Each of these tiny kernels takes some microseconds at most.
    assert counted["none"].kernels_us == 0 and 1 < counted["three"].kernels_us < 60
    loop_us(three)
    after = statistics.median(loop_us(three) for _ in range(9))
    print(f"\na call of three launches: {before:.2f} us before, {after:.2f} us after")
    assert 0.9 <= after / before <= 1.1


def test_equal_arms_are_equal_in_the_queue():
    """At most 2 % of 200 verdicts on one implementation against itself are `faster` or `slower`."""
    shape = ROWS | {"L": 256}
    case = a_case("selection_rows", shape, dtype=DType.BFLOAT16, timing=Timing(rotate=2))
    item = next(i for i in registry.load() if (i.op, i.name) == (case.op, "sdpa_gqa"))
    sets, timer = sets_of(case, "cuda"), CudaTimer()
    arms = [arm_of(item, case, sets, Random(n)) for n in range(2)]
    for n, arm in enumerate(arms):
        arm.name = f"arm {n}"
        arm.check()
    call_ms = {arm.name: 0.02 for arm in arms}
    unequal = []
    for seed in range(200):
        found = sampling.take_bursts(arms, timer, call_ms, 0, Random(seed), {})
        one, other = (found[arm.name].time_ms for arm in arms)
        count = min(len(one), len(other))
        verdict, _ = decide_verdict(ratio_of_medians(one[:count], other[:count]), Regime.QUEUE)
        if verdict in (Verdict.FASTER, Verdict.SLOWER):
            unequal.append(verdict)
    print(f"\n{len(unequal)} of 200 verdicts on equal arms differ")
    assert len(unequal) <= 4


def test_the_controls_of_the_queue_are_caught_and_candidates_are_judged(tmp_path):
    run(tmp_path, "op: selection_rows\naxes: {dtype: float16, N: 1024, H: 8, D: 128, L: 256}\n")
    records = read_records(tmp_path / "run")
    queue = {r.implementation: r for r in records if r.caught_by in ("host", "burst")}
    assert {name: r.caught for name, r in queue.items()} == {
        "needless_python": "caught",
        "thousand_launches": "caught",
        "hidden_in_a_thread": "caught",
    }, [(r.implementation, r.status, r.reason) for r in queue.values()]
    assert queue["thousand_launches"].launches >= 1000
    # If its launches fill the device's queue, the finding uses the time of its kernels.
    many = queue["thousand_launches"]
    assert many.kernels_us < 1e3 * many.median_in(Regime.QUEUE)
    mine = [r for r in records if r.role is Role.CANDIDATE and r.status is Status.OK]
    assert mine
    for r in mine:
        found = r.compared(Regime.QUEUE)
        assert r.launches >= 1 and found is not None and found.verdict is not None
        assert r.host_p20_us <= r.host_us <= r.host_p80_us
        assert found.verdict is Verdict.INCONCLUSIVE or found.lo is not None

"""The timer agrees with CUPTI, an independent clock of the same device."""

import statistics
from collections import Counter
from functools import partial

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from nsabench.implementations.baselines.selection_rows import gqa, heads_as_queries
from nsabench.worker.timing import ceilings
from nsabench.worker.timing.cuda import CudaTimer

pytestmark = pytest.mark.gpu


SHAPES = (
    *((256, 4, 64, 64), (256, 8, 128, 512), (1024, 4, 64, 256)),
    *((1024, 8, 128, 64), (1024, 8, 128, 256), (1024, 8, 128, 1024)),
)
SAMPLES = 60


@pytest.fixture(scope="module")
def clock():
    """Return the timer, and what it adds to a call (ms) as a run measures it."""
    timer = CudaTimer()
    return timer, ceilings._measure_offset(timer)


def calls(attention, dtypes):
    for dtype in dtypes:
        for n, h, d, length in SHAPES:
            like = {"dtype": getattr(torch, dtype), "device": "cuda"}
            q, k = torch.randn(n, h, d, **like), torch.randn(n, length, d, **like)
            v = torch.randn(n, length, d, **like)
            yield f"{dtype} {n},{h},{d},{length}", partial(attention, q, k, v, d**-0.5)


def test_what_the_timer_adds_is_small_and_constant(clock):
    timer, offset = clock
    floor = ceilings._measure_floor(timer)
    again = [ceilings._measure_offset(timer) for _ in range(3)]
    print(
        f"\nadds {1e3 * offset:.2f} us, again {[f'{1e3 * x:.2f}' for x in again]}; "
        f"an empty call reads {1e3 * floor:.2f} us"
    )
    assert floor <= offset < 5e-3
    assert max(again) - min(again) < 5e-4


def test_calls_of_one_kernel_agree_with_cupti(clock):
    """In 12 cases, the median less what the timer adds is within 3 % or 1 us of the kernel's
    time."""
    timer, offset = clock
    off = {}
    for name, call in calls(gqa, ("float16", "bfloat16")):
        ours = by_events(timer, call) - offset
        _, span, kernels = by_cupti(timer, call)
        print(f"{name}: {1e3 * ours:.2f} us, CUPTI {1e3 * span:.2f} us, {kernels} kernel(s)")
        if kernels == 1:
            off[name] = abs(ours - span) / max(0.03 * span, 1e-3)
    assert len(off) == 12
    assert max(off.values()) <= 1, off


def test_calls_of_several_kernels_lie_between_their_sum_and_their_span(clock):
    """CUPTI lengthens the gaps between kernels. The sum of the kernels' times holds no gap."""
    timer, offset = clock
    for name, call in calls(heads_as_queries, ("float16",)):
        ours = by_events(timer, call) - offset
        busy, span, kernels = by_cupti(timer, call)
        print(
            f"{name}: {1e3 * ours:.2f} us, CUPTI {1e3 * busy:.2f} busy in {1e3 * span:.2f} us, "
            f"{kernels} kernel(s)"
        )
        assert busy - max(0.03 * busy, 1e-3) <= ours <= span + max(0.03 * span, 1e-3)


def by_events(timer, call):
    """Return the median of the timer's samples (ms)."""
    for _ in range(20):
        timer.sample("warm", call)
    return statistics.median(timer.sample("call", call)[0].time_ms for _ in range(SAMPLES))


def by_cupti(timer, call):
    """Return the medians of the kernels' summed times and of their span (ms), and the kernels of a
    call.

    The timer tries a sample again if its launch gap showed. Each try begins with a spin and a
    flush. Kernels that follow the flush in most tries belong to the call.
    """
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for _ in range(SAMPLES):
            timer.sample("call", call)
    events = sorted(
        (e.time_range.start, e.time_range.end, e.name)
        for e in profiled.events()
        if e.device_type.name == "CUDA"
    )
    tries = []
    for event in events:
        if "spin_kernel" in event[2]:
            tries.append([])
        elif tries:
            tries[-1].append(event)
    own = [_after_the_flush(one) for one in tries]
    seen = Counter(name for one in own for name in {name for _, _, name in one})
    common = {name for name, count in seen.items() if count > len(own) / 2}
    kept = [[e for e in one if e[2] in common] for one in own]
    kept = [one for one in kept if one]
    assert len(kept) >= SAMPLES
    busy = statistics.median(sum(end - start for start, end, _ in one) for one in kept)
    span = statistics.median(max(e[1] for e in one) - one[0][0] for one in kept)
    return busy / 1e3, span / 1e3, statistics.mode(len(one) for one in kept)


def _after_the_flush(one):
    last = next((i for i, (_, _, name) in enumerate(one) if "reduce_kernel" in name), len(one))
    return one[last + 1 :]


def test_that_a_call_could_not_be_hidden_is_forgotten_with_its_case(clock):
    """In another case, perhaps the call of that name does not wait for the device."""
    timer, _ = clock
    assert not timer.sample("flex", torch.cuda.synchronize)[0].gap_hidden
    timer.forget()
    assert timer.sample("flex", lambda: None)[0].gap_hidden

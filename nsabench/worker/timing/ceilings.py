"""Measure the best that this device can do in this run: the roofline for all records."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from nsabench.machine.clock import now_s
from nsabench.model.measurement import Ceilings
from nsabench.verdicts.statistics import quantile
from nsabench.worker.timing.cuda import l2_bytes, synchronize
from nsabench.worker.timing.timer import Call, Timer, flush

COPY_BYTES = 2 << 30
MATMUL_SIZE = 8192
CPU_MATMUL_SIZES = (512, 1024, 2048)
CPU_MATMUL_MS = 5.0  # if a product takes longer, no larger matrix is tried
CPU_REPEATS, CPU_MOVES = 9, 4
REPEATS, FLOOR_REPEATS, CPU_FLOOR_REPEATS = 7, 50, 15
KNOWN_SPIN_CYCLES = (200_000, 2_000_000)
OFFSET_SPIN_CYCLES = (5_000, 50_000)  # about 3 and 25 us
# With far fewer pairs, the median's noise would be some percent of a short kernel's time.
OFFSET_PAIRS = 400


def measure(device: str, timer: Timer) -> Ceilings:
    """Measure rates (the best of several repeats), and the errors of the timer."""
    return _measure_cuda(timer) if device == "cuda" else _measure_cpu(timer)


def _measure_cuda(timer: Timer) -> Ceilings:
    free, _ = torch.cuda.mem_get_info()
    size = min(COPY_BYTES, free // 8)
    source = torch.randint(1 << 30, (size // 4,), dtype=torch.int32, device="cuda")
    target = torch.empty_like(source)
    copy_ms = _best(timer, "copy", lambda: target.copy_(source))
    l2 = l2_bytes(torch.cuda.get_device_properties(torch.cuda.current_device()))
    resident = source[: max(l2, 8 << 20) // 4 // 4]
    part = target[: resident.numel()]

    def many() -> None:
        for _ in range(32):
            part.copy_(resident)

    l2_ms = _best(timer, "l2", many)
    rates = {}
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        n = MATMUL_SIZE if dtype.itemsize == 2 else MATMUL_SIZE // 2
        a = torch.randn(n, n, dtype=dtype, device="cuda")
        b = torch.randn(n, n, dtype=dtype, device="cuda")
        best = _best(timer, f"matmul {dtype}", partial(torch.matmul, a, b))
        rates[str(dtype).removeprefix("torch.")] = 2 * n**3 / best / 1e9
    return Ceilings(
        copy_gb_s=2 * size / copy_ms / 1e6,
        l2_gb_s=32 * 2 * resident.numel() * 4 / l2_ms / 1e6,
        tflop_s=rates,
        timer_floor_ms=_measure_floor(timer),
        timer_offset_ms=_measure_offset(timer),
        known_duration_error=_measure_known_duration_error(timer),
    )


def _measure_cpu(timer: Timer) -> Ceilings:
    # Twice the last-level cache. If the machine reports too few bytes, the ceiling is too high.
    source = flush()
    target = np.empty_like(source)
    moved = _measure_cpu_gb_s(timer, source, target)
    return Ceilings(
        tflop_s={"float32": _measure_cpu_tflop_s(timer)},
        timer_floor_ms=_measure_floor(timer, CPU_FLOOR_REPEATS),
        # This is measured twice, since another process may use a core for a while.
        copy_gb_s=max(moved, _measure_cpu_gb_s(timer, source, target)),
        cpu_flush_bytes=source.nbytes,
    )


def _measure_cpu_gb_s(
    timer: Timer, source: NDArray[np.float64], target: NDArray[np.float64]
) -> float:
    """Return the best rate of copies by one core, or of reads by all."""
    copy_ms = _time_warm(timer, partial(np.copyto, target, source), CPU_MOVES)
    read_ms = _time_warm(timer, partial(torch.sum, torch.from_numpy(target)), CPU_MOVES)
    return max(2 * source.nbytes / copy_ms, source.nbytes / read_ms) / 1e6


def _measure_cpu_tflop_s(timer: Timer) -> float:
    rate = 0.0
    for size in CPU_MATMUL_SIZES:
        a = torch.randn(size, size)
        best = _time_warm(timer, partial(torch.matmul, a, a), CPU_REPEATS)
        rate = max(rate, 2 * size**3 / best / 1e9)
        if best >= CPU_MATMUL_MS:
            break
    return rate


def _time_warm(timer: Timer, call: Call, repeats: int) -> float:
    return min(timer.burst([call], 0)[0] for _ in range(repeats))


def _best(timer: Timer, name: str, call: Call) -> float:
    for _ in range(2):
        timer.sample(name, call)
    return min(timer.sample(name, call)[0].time_ms for _ in range(REPEATS))


def _measure_floor(timer: Timer, repeats: int = FLOOR_REPEATS) -> float:
    """Return the median time (ms) of a sample of an empty call."""
    return quantile([timer.sample("null", lambda: None)[0].time_ms for _ in range(repeats)], 0.5)


def _measure_offset(timer: Timer) -> float:
    """Return how much more time (ms) the events read for a kernel than a clock inside it.

    A spin ends when the SM has counted its cycles. Spins of two lengths give the time of a cycle,
    and so the time that events read for a spin of no cycles. The lengths alternate, since the clock
    may rise meanwhile.
    """
    offsets = []
    for _ in range(OFFSET_PAIRS):
        short_ms, long_ms = (
            timer.sample(f"spin of {cycles}", partial(_spin, cycles))[0].time_ms
            for cycles in OFFSET_SPIN_CYCLES
        )
        short, long = OFFSET_SPIN_CYCLES
        offsets.append(short_ms - short * (long_ms - short_ms) / (long - short))
    return quantile(offsets, 0.5)


def _spin(cycles: int) -> None:
    torch.cuda._sleep(cycles)


def _measure_known_duration_error(timer: Timer) -> float:
    """Return the relative error of the events, by the clock of the host.

    The duration is the difference between spins of n and of 10 n cycles, so fixed overheads cancel.
    """
    by_events, by_host = [], []
    for cycles in KNOWN_SPIN_CYCLES:
        event_times, host_times = [], []
        for _ in range(9):
            event_times.append(timer.sample("spin", partial(_spin, cycles))[0].time_ms)
            synchronize()
            start = now_s()
            _spin(cycles)
            synchronize()
            host_times.append((now_s() - start) * 1e3)
        by_events.append(quantile(event_times, 0.5))
        by_host.append(quantile(host_times, 0.5))
    return (by_events[1] - by_events[0]) / (by_host[1] - by_host[0]) - 1

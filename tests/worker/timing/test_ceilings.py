"""Limits of the machine that are measured before any kernel."""

from __future__ import annotations

from nsabench.machine.cpu_caches import last_level_bytes
from nsabench.worker.timing import ceilings
from nsabench.worker.timing.timer import CpuTimer
from tests.true_caches import true_caches


def test_a_cpu_copies_what_no_cache_holds() -> None:
    with true_caches():
        found = ceilings.measure("cpu", CpuTimer())
    assert found.cpu_flush_bytes == 2 * last_level_bytes()
    assert found.copy_gb_s and found.timer_floor_ms is not None and found.tflop_s["float32"] > 0

"""What is measured of the machine before anything else."""

from __future__ import annotations

import time
from functools import partial

import numpy as np

from nsabench.execution.timing import ceilings
from nsabench.execution.timing.timer import CpuTimer
from nsabench.machine.cpu_caches import last_level_bytes
from tests.true_caches import true_caches


def test_a_cpu_copies_what_no_cache_holds() -> None:
    with true_caches():
        found = ceilings.measure("cpu", CpuTimer())
    assert found.cpu_flush_bytes == 2 * last_level_bytes()
    assert found.copy_gb_s and found.timer_floor_ms is not None and found.tflop_s["float32"] > 0


def test_the_best_of_some_calls_counts() -> None:
    waits = iter([0.03, 0.001, 0.03])
    found = ceilings._best_warm(CpuTimer(), lambda: time.sleep(next(waits)), 3)
    assert 1.0 <= found < 30.0


def test_what_is_only_read_counts_where_it_is_faster() -> None:
    """A copy that is small enough to go through the caches reads what it is about to write."""
    source = np.ones(1 << 20)
    target = np.empty_like(source)
    rate = ceilings._cpu_gb_s(CpuTimer(), source, target)
    copy = partial(np.copyto, target, source)
    alone = 2 * source.nbytes / ceilings._best_warm(CpuTimer(), copy, 50) / 1e6
    assert rate > 0.2 * alone

"""What is measured of the machine before anything else."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

from nsabench.execution.timing import ceilings
from nsabench.execution.timing.timer import CpuTimer
from nsabench.machine.cpu_caches import last_level_bytes
from tests.true_caches import true_caches


def test_a_cpu_copies_what_no_cache_holds() -> None:
    with true_caches():
        found = ceilings.measure("cpu", CpuTimer())
    assert found.cpu_flush_bytes == 2 * last_level_bytes()
    assert found.copy_gb_s and found.timer_floor_ms is not None and found.tflop_s["float32"] > 0


class Given:
    """A timer whose clock says what a call of this name takes (ms): two of three take longer."""

    def __init__(self, **times_ms: float) -> None:
        self.times_ms = times_ms
        self.calls = 0

    def burst(self, calls: Sequence[partial[Any]], kept: int) -> tuple[float, None]:
        (call,) = calls
        self.calls += 1
        return self.times_ms[call.func.__name__] * (1 if self.calls % 3 == 2 else 10), None


@pytest.mark.parametrize(("copy_ms", "read_ms", "gb_s"), [(2.0, 4.0, 8.0), (10.0, 4.0, 2.0)])
def test_the_faster_of_copies_and_reads_counts(copy_ms: float, read_ms: float, gb_s: float) -> None:
    """A copy that is small enough to go through the caches reads what it is about to write."""
    source = np.ones(1_000_000)
    clock: Any = Given(copyto=copy_ms, sum=read_ms)
    assert ceilings._cpu_gb_s(clock, source, source.copy()) == pytest.approx(gb_s)

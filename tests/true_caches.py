"""Caches of the CPU as a run has them, where tests push out less."""

from contextlib import contextmanager

import pytest

from nsabench.machine import cpu_caches
from nsabench.worker.timing import timer


@contextmanager
def true_caches():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timer, "last_level_bytes", cpu_caches.last_level_bytes)
        timer.flush.cache_clear()
        yield
    timer.flush.cache_clear()

"""Flush the CPU's real caches in a test; other tests flush fewer bytes."""

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

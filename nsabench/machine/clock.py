"""The host clock, bound before any foreign code is imported, so that patching `time` has no effect.

A worker imports this module before it loads implementations.
"""

from time import perf_counter_ns as _perf_counter_ns


def now_s(_ns=_perf_counter_ns) -> float:  # type: ignore[no-untyped-def]
    """Seconds on a monotonic clock."""
    return float(_ns()) * 1e-9

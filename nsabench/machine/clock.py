"""The host clock. A worker imports this module before foreign code, which could patch `time`."""

from time import perf_counter_ns as _perf_counter_ns


def now_s(_ns=_perf_counter_ns) -> float:  # type: ignore[no-untyped-def]
    return float(_ns()) * 1e-9

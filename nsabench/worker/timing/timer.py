"""Define the interface of every timer, and the timer of the CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from nsabench.machine.clock import now_s
from nsabench.machine.cpu_caches import last_level_bytes

CPU_FLUSHES = 2  # a flush reads this multiple of the last-level cache
LINE_WORDS = 8  # words of a cache line, which are read together


@dataclass(frozen=True)
class CallTime:
    time_ms: float
    escaped_ms: float = 0.0  # the part of time_ms after the end event
    gap_hidden: bool = True
    host_us: float = 0.0  # time that the call held the CPU; 0.0 if no spin outlasted the call


Call = Callable[[], Any]
Timed = tuple[CallTime, Any]
Keep = Callable[[Any], Any]  # copies a result


def as_it_is(result: Any) -> Any:
    return result


class Timer(Protocol):
    """Times single calls on cold caches (`sample`), or calls back to back (`burst`)."""

    def sample(self, arm: str, call: Call, retry: Callable[[], Call] | None = None) -> Timed:
        """Time `call` once. If the timer must repeat a sample, `retry` makes the next call."""
        ...

    def burst(self, calls: Sequence[Call], kept: int, keep: Keep = as_it_is) -> tuple[float, Any]:
        """Make the calls back to back. Return the time until all work is done, in ms per call.

        Also return the result of call `kept`, which `keep` copies after the clock has stopped.
        """
        ...

    def forget(self) -> None: ...


def call_back_to_back(calls: Sequence[Call], kept: int) -> Any:
    """Make the calls as a caller's loop would; return the result of call `kept`."""
    result = None  # like a caller's variable, it drops each result when the next one arrives
    for call in calls[:kept]:
        result = call()
    kept_result = result = calls[kept]()
    for call in calls[kept + 1 :]:
        result = call()
    del result
    return kept_result


@cache
def flush() -> NDArray[np.float64]:
    """Return the array that is read to flush the caches. Forked workers share its memory."""
    words = np.ones(CPU_FLUSHES * last_level_bytes() // 8)
    words.flags.writeable = False
    return words


class CpuTimer:
    def __init__(self) -> None:
        self._flush = flush()

    def sample(self, arm: str, call: Call, retry: Callable[[], Call] | None = None) -> Timed:
        self._flush[::LINE_WORDS].sum()
        start = now_s()
        result = call()
        return CallTime((now_s() - start) * 1e3), result

    def burst(self, calls: Sequence[Call], kept: int, keep: Keep = as_it_is) -> tuple[float, Any]:
        start = now_s()
        result = call_back_to_back(calls, kept)
        time_ms = (now_s() - start) * 1e3 / len(calls)
        return time_ms, keep(result)

    def forget(self) -> None:
        return None

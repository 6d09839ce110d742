"""The interface every timer has, and the timer of the CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from nsabench.machine.clock import now_s
from nsabench.machine.cpu_caches import last_level_bytes

CPU_FLUSHES = 2  # times the last-level cache
LINE_WORDS = 8  # of a cache line; who reads one of them has read all


@dataclass(frozen=True)
class Sample:
    """One timing. `escaped_ms` is the part of `time_ms` that outlived the end event.

    host_us: how long the call held the CPU while the device was held; 0.0 where it was not held.
    """

    time_ms: float
    escaped_ms: float = 0.0
    gap_hidden: bool = True
    host_us: float = 0.0


Call = Callable[[], Any]
Timed = tuple[Sample, Any]


class Timer(Protocol):
    """Times one call at a time, on cold caches or on what `touch` reads once they are flushed."""

    touch: Callable[[], None] | None

    def sample(self, arm: str, call: Call, retry: Callable[[], Call] | None = None) -> Timed:
        """Time `call` once; return the sample and what `call` returned.

        A sample that is no good is taken anew with the call that `retry` makes, since a call need
        not be repeatable; it may raise.
        """
        ...

    def burst(
        self, calls: Sequence[Call], kept: int, keep: Callable[[Any], Any] = lambda result: result
    ) -> tuple[float, Any]:
        """Make the calls one behind the other, nothing awaited between them; return the time a
        call (ms), up to the end of the last one's work, and what the call of index `kept`
        returned, as `keep` copies it the moment that the clock stops: what is not there by then
        was not timed."""
        ...

    def synchronize(self) -> None:
        """Wait until the device has nothing left to do."""
        ...

    def forget(self) -> None:
        """A new case begins: arms of a name are not the same work any longer."""
        ...


def one_behind_the_other(calls: Sequence[Call], kept: int) -> Any:
    """Make the calls as a caller's loop would; return what the call of index `kept` returned.

    Like a caller's variable, `result` lets go of a result only when the next one is there.
    """
    result = None
    for call in calls[:kept]:
        result = call()
    looked_at = result = calls[kept]()
    for call in calls[kept + 1 :]:
        result = call()
    del result
    return looked_at


@cache
def flush() -> NDArray[np.float64]:
    """What is read to push the caches out. One a process, and of a template its workers have it
    for nothing: the memory is theirs together, since none of them writes."""
    words = np.ones(CPU_FLUSHES * last_level_bytes() // 8)
    words.flags.writeable = False
    return words


class CpuTimer:
    """`perf_counter_ns` around the call, after pushing the caches out."""

    def __init__(self) -> None:
        self._flush = flush()
        self.touch: Callable[[], None] | None = None

    def sample(self, arm: str, call: Call, retry: Callable[[], Call] | None = None) -> Timed:
        self._flush[::LINE_WORDS].sum()
        if self.touch is not None:
            self.touch()
        start = now_s()
        result = call()
        return Sample((now_s() - start) * 1e3), result

    def burst(
        self, calls: Sequence[Call], kept: int, keep: Callable[[Any], Any] = lambda result: result
    ) -> tuple[float, Any]:
        start = now_s()
        result = one_behind_the_other(calls, kept)
        time_ms = (now_s() - start) * 1e3 / len(calls)
        return time_ms, keep(result)

    def synchronize(self) -> None:
        return None

    def forget(self) -> None:
        self.touch = None

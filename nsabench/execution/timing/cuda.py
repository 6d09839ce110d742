"""The timer of a CUDA device: events around one call on a flushed L2, the launch gap hidden.

A spin kernel holds the stream while the host queues start event, call and end event. Whether the
gap was really hidden is read back per sample (the start event must not have passed when the call
returns), so the spin need not be guessed: it grows until it suffices. A call that waits for the
device itself can never be hidden; its samples say so and include its launch gaps, as its user would
see them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from nsabench.execution.failure import DeviceLost
from nsabench.execution.timing.l2_flush import L2Flush
from nsabench.execution.timing.spin import FIRST_CYCLES, longer
from nsabench.execution.timing.timer import Call, Sample, Timed, one_behind_the_other
from nsabench.machine.clock import now_s

# A device synchronise after an event synchronise now and then takes 0.1 ms with nothing to wait
# for (H200). Shorter escapes than this are found by the stream-ordered call of the parity checks.
MIN_ESCAPE_S = 200e-6

# Bound here, before foreign code is imported. The base class is a C type: it cannot be patched.
_Event = torch._C._CudaEventBase
_sleep = torch.cuda._sleep
_synchronize = torch._C._cuda_synchronize
_current_stream = torch.cuda.current_stream


class CudaTimer:
    """Times calls on the current stream of the current device."""

    def __init__(self) -> None:
        self._flush_l2 = L2Flush()
        self.touch: Callable[[], None] | None = None
        self._start = _Event(enable_timing=True)
        self._end = _Event(enable_timing=True)
        self._spin: dict[str, int] = {}
        self._escape_s = max(MIN_ESCAPE_S, 4 * self._measure_sync_noise())

    def _measure_sync_noise(self) -> float:
        """How long the device synchronise takes after a sample that leaves nothing running."""
        waits = sorted(self._once(FIRST_CYCLES, lambda: None)[2] for _ in range(100))
        return waits[-3]

    def sample(self, arm: str, call: Call, retry: Callable[[], Call] | None = None) -> Timed:
        spin, before_s = self._spin.get(arm, FIRST_CYCLES), 0.0
        while True:
            try:
                sample, result, host_s = self._sampled(spin, call)
            except RuntimeError as error:  # asynchronous: raised by an event or a synchronise
                raise DeviceLost(arm, " ".join(str(error).split())[:300]) from error
            if sample.gap_hidden or spin == 0:
                return sample, result
            # Who outlasts the longest spin synchronises: it is not hidden any more, and says so.
            self._spin[arm] = spin = longer(spin, host_s, before_s)
            before_s = host_s
            if retry is not None:
                call = retry()

    def _sampled(self, spin: int, call: Call) -> tuple[Sample, Any, float]:
        """A sample, what the call returned, and how long the host was in it (s)."""
        hidden, result, waited_s, host_s = self._once(spin, call)
        # Work that was put on other streams and not joined keeps the device busy after the event.
        escaped_ms = waited_s * 1e3 if waited_s > self._escape_s else 0.0
        time_ms = self._start.elapsed_time(self._end) + escaped_ms
        host_us = host_s * 1e6 if hidden else 0.0
        return Sample(time_ms, escaped_ms, hidden, host_us), result, host_s

    def burst(
        self, calls: Sequence[Call], kept: int, keep: Callable[[Any], Any] = lambda result: result
    ) -> tuple[float, Any]:
        _synchronize()
        start = now_s()
        result = one_behind_the_other(calls, kept)
        _synchronize()
        time_ms = (now_s() - start) * 1e3 / len(calls)
        return time_ms, keep(result)

    def _once(self, spin: int, call: Call) -> tuple[bool, Any, float, float]:
        """Queue and finish one call: was the gap hidden, what came back, how long the device was
        busy after the end event (s), how long the host was in the call (s)."""
        stream = _current_stream()
        # The flush comes behind the spin, so that nothing which the call queues on another stream
        # can warm the L2 while the device is held.
        if spin:
            _sleep(spin)
        self._flush_l2()
        if self.touch is not None:
            self.touch()
        self._start.record(stream)
        called = now_s()
        result = call()
        host_s = now_s() - called
        self._end.record(stream)
        hidden = bool(spin) and not self._start.query()
        self._end.synchronize()
        before = now_s()
        _synchronize()
        return hidden, result, now_s() - before, host_s

    def synchronize(self) -> None:
        _synchronize()

    def forget(self) -> None:
        self._spin.clear()
        self.touch = None

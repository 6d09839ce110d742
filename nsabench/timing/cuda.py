"""The timer of a CUDA device: events around one call on a flushed L2, the launch gap hidden.

A spin kernel holds the stream while the host queues start event, call and end event. Whether the
gap was really hidden is read back per sample (the start event must not have passed when the call
returns), so the spin need not be guessed: it is doubled until it suffices. A call that waits for
the device itself can never be hidden; its samples say so and include its launch gaps, as its user
would see them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from nsabench.timing.clock import now_s
from nsabench.timing.timer import DeviceLost, Sample

FIRST_SPIN_CYCLES = 100_000  # about 60 us
MAX_SPIN_CYCLES = 20_000_000  # about 10 ms

# Bound here, before foreign code is imported. The base class is a C type: it cannot be patched.
_Event = torch._C._CudaEventBase
_sleep = torch.cuda._sleep
_synchronize = torch._C._cuda_synchronize
_current_stream = torch.cuda.current_stream


class CudaTimer:
    """Times calls on the current stream of the current device."""

    def __init__(self) -> None:
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        # Reading evicts as surely as writing and leaves no dirty lines, whose write-back would be
        # charged to the call that is timed.
        words = 2 * max(properties.L2_cache_size, 8 << 20) // 4
        self._flush = torch.randint(1 << 30, (words,), dtype=torch.int32, device="cuda")
        self._sink = torch.empty((), dtype=torch.int32, device="cuda")
        self._start = _Event(enable_timing=True)
        self._end = _Event(enable_timing=True)
        self._spin: dict[str, int] = {}
        self._sync_floor_s = self._measure_sync_floor()

    def _measure_sync_floor(self) -> float:
        times = []
        for _ in range(200):
            before = now_s()
            _synchronize()
            times.append(now_s() - before)
        return sorted(times)[-5]

    def sample(self, arm: str, call: Callable[[], Any]) -> tuple[Sample, Any]:
        spin = self._spin.get(arm, FIRST_SPIN_CYCLES)
        while True:
            try:
                sample, result = self._once(spin, call)
            except RuntimeError as error:  # asynchronous: raised by an event or a synchronise
                raise DeviceLost(arm, " ".join(str(error).split())[:300]) from error
            if sample.gap_hidden or spin == 0:
                return sample, result
            # A call that outlasts the longest spin synchronises: stop hiding, and say so.
            spin = 2 * spin if spin < MAX_SPIN_CYCLES else 0
            self._spin[arm] = spin

    def _once(self, spin: int, call: Callable[[], Any]) -> tuple[Sample, Any]:
        stream = _current_stream()
        torch.amax(self._flush, dim=0, out=self._sink)
        if spin:
            _sleep(spin)
        self._start.record(stream)
        result = call()
        self._end.record(stream)
        hidden = bool(spin) and not self._start.query()
        self._end.synchronize()
        before = now_s()
        _synchronize()
        waited = now_s() - before
        # Work that was put on other streams and not joined keeps the device busy after the event.
        escaped_ms = waited * 1e3 if waited > 4 * self._sync_floor_s else 0.0
        time_ms = self._start.elapsed_time(self._end) + escaped_ms
        return Sample(time_ms, escaped_ms, hidden), result

    def synchronize(self) -> None:
        _synchronize()

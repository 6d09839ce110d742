"""Measure a call on CUDA: its time by events and, after all timing, its launches by CUPTI.

A timed call finds a flushed L2. A spin kernel holds the stream while the host queues the start
event, the call and the end event. If the start event has not passed when the call returns, the time
contains no launch gaps. If a call waits for the device, its time contains the gaps, and
`gap_hidden` is False.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.autograd.profiler import profile  # torch.profiler imports the compiler

from nsabench.failure import DeviceLost, Failure
from nsabench.machine.clock import now_s
from nsabench.worker.timing.timer import Call, CallTime, Keep, Timed, as_it_is, call_back_to_back

# Work has escaped if the device is busy for this long after the end event. To synchronise an idle
# device sometimes takes 0.1 ms (H200). `StreamOrder` finds work that escapes for less time.
MIN_ESCAPE_S = 200e-6
FLUSHES = 5  # flushes that are timed; the shortest counts
FIRST_CYCLES = 100_000  # 50 to 60 us.
MOST_CYCLES = 100_000_000  # 50 to 60 ms.
OUTLASTS_S = 0.15  # the time of the longest spin at 0.67 GHz: no spin hides a longer call
CYCLES_PER_S = 3e9  # more than any GPU has: a spin that is too short wastes a call
MOST_LATE = 5  # after more late tries of an arm in a case, its spin is not shortened

LEAST_L2 = 8 << 20
LARGEST_L2 = 128 << 20  # no device has more

# CUPTI is unloaded afterwards, so that it does not slow the calls of later cases.
os.environ.setdefault("TEARDOWN_CUPTI", "1")
# A kernel of torch.cuda._sleep marks where a counted call begins and ends.
MARK, _MARK_CYCLES = "spin_kernel", 1000

# Bound here, before foreign code is imported. The base class is a C type: it cannot be patched.
_Event: Any = getattr(torch._C, "_CudaEventBase", None)  # None in a torch for CPUs
_amax = torch.amax
_sleep = torch.cuda._sleep
synchronize: Any = getattr(torch._C, "_cuda_synchronize", None)
_current_stream = torch.cuda.current_stream


class _Once(NamedTuple):
    hidden: bool  # whether the launch gap is hidden
    result: Any
    waited_s: float  # how long the host waited for the device after the end event
    host_s: float  # how long the host was in the call
    queued_s: float  # host time from the launch of the spin to the end of the call


class CudaTimer:
    def __init__(self) -> None:
        self._flush_l2 = L2Flush()
        self._start = _Event(enable_timing=True)
        self._end = _Event(enable_timing=True)
        self._spin: dict[str, int] = {}
        self._late: Counter[str] = Counter()  # tries whose launch gap was not hidden
        self._exposed: Counter[str] = Counter()  # samples whose launch gap no spin hid
        self._escape_s = max(MIN_ESCAPE_S, 4 * self._measure_sync_noise())
        self._flush_s = self._measure_flush()  # now that the device is warm

    def _measure_sync_noise(self) -> float:
        waits = sorted(self._run_once(FIRST_CYCLES, lambda: None).waited_s for _ in range(100))
        return waits[-3]

    def sample(self, arm: str, call: Call, retry: Callable[[], Call] | None = None) -> Timed:
        spin, before_s = self._spin.get(arm, FIRST_CYCLES), 0.0
        while True:
            try:
                sample, once = self._sampled(spin, call)
            except RuntimeError as error:  # an event or a synchronise raises an earlier error
                raise DeviceLost(arm, " ".join(str(error).split())[:300]) from error
            # A call may be late on purpose, to be made again: do not shorten after many late tries.
            if sample.gap_hidden and self._late[arm] <= MOST_LATE:
                self._spin[arm] = shorten_spin(spin, once.queued_s - self._flush_s)
            if sample.gap_hidden or spin == 0:
                return sample, once.result
            self._late[arm] += 1
            # A call that outlasts the longest spin waits for the device. After two such samples no
            # spin is tried. A single one may be due to a busy machine.
            spin = lengthen_spin(spin, once.host_s, before_s)
            self._exposed[arm] += spin == 0
            if spin or self._exposed[arm] > 1:
                self._spin[arm] = spin
            before_s = once.host_s
            if retry is not None:
                call = retry()

    def _sampled(self, spin: int, call: Call) -> tuple[CallTime, _Once]:
        once = self._run_once(spin, call)
        # Work on other streams that was not joined keeps the device busy after the end event.
        escaped_ms = once.waited_s * 1e3 if once.waited_s > self._escape_s else 0.0
        time_ms = self._start.elapsed_time(self._end) + escaped_ms
        host_us = once.host_s * 1e6 if once.hidden else 0.0
        return CallTime(time_ms, escaped_ms, once.hidden, host_us), once

    def burst(self, calls: Sequence[Call], kept: int, keep: Keep = as_it_is) -> tuple[float, Any]:
        synchronize()
        start = now_s()
        result = call_back_to_back(calls, kept)
        synchronize()
        time_ms = (now_s() - start) * 1e3 / len(calls)
        return time_ms, keep(result)

    def _run_once(self, spin: int, call: Call) -> _Once:
        stream = _current_stream()
        # The flush follows the spin. Otherwise a call could warm the L2 from another stream while
        # the device is held.
        if spin:
            _sleep(spin)
        queued = now_s()
        self._flush_l2()
        self._start.record(stream)
        called = now_s()
        result = call()
        returned = now_s()
        self._end.record(stream)
        hidden = bool(spin) and not self._start.query()
        self._end.synchronize()
        before = now_s()
        synchronize()
        return _Once(hidden, result, now_s() - before, returned - called, returned - queued)

    def _measure_flush(self) -> float:
        stream = _current_stream()
        took_ms: list[float] = []
        for _ in range(FLUSHES):
            self._start.record(stream)
            self._flush_l2()
            self._end.record(stream)
            self._end.synchronize()
            took_ms.append(self._start.elapsed_time(self._end))
        return min(took_ms) / 1e3

    def forget(self) -> None:
        self._spin.clear()
        self._late.clear()
        self._exposed.clear()


def lengthen_spin(cycles: int, host_s: float, before_s: float) -> int:
    """Return the cycles of the next spin after a call outlasted one; 0 if no spin is enough.

    One pause of the host does not make all spins of a case long: the shorter of two tries counts.
    """
    taken_s = min(host_s, before_s)
    if cycles >= MOST_CYCLES or taken_s >= OUTLASTS_S:
        return 0
    return min(max(2 * cycles, int(taken_s * CYCLES_PER_S)), MOST_CYCLES)


def shorten_spin(cycles: int, beyond_s: float) -> int:
    """Return the cycles of the next spin: half as many, if these surely last for `beyond_s`."""
    half = max(cycles // 2, FIRST_CYCLES)
    return half if beyond_s * CYCLES_PER_S <= half else cycles


def l2_bytes(properties: Any) -> int:
    """Return the bytes of the L2, from torch (2.5 or later), the data sheet, or `LARGEST_L2`."""
    size: int | None = getattr(properties, "L2_cache_size", None)
    if size is not None:
        return size
    from nsabench.machine.datasheet import find_unique  # only for an older torch

    sheet = find_unique(properties.name)
    return sheet.l2_mib << 20 if sheet else LARGEST_L2


class L2Flush:
    """Reads twice the size of the L2. Writing would leave dirty lines for the timed call."""

    def __init__(self) -> None:
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        words = 2 * max(l2_bytes(properties), LEAST_L2) // 4
        self._words = torch.randint(1 << 30, (words,), dtype=torch.int32, device="cuda")
        self._sink = torch.empty((), dtype=torch.int32, device="cuda")

    def __call__(self) -> None:
        _amax(self._words, dim=0, out=self._sink)


class Ran(NamedTuple):
    name: str  # the name of a kernel, a copy or a fill
    taken_us: float


class Counted(NamedTuple):
    """Launches of a call, and the sum of their times, even if some ran at once."""

    launches: int
    kernels_us: float


def count_launches(prepared: Mapping[str, Callable[[], Callable[[], Any]]]) -> dict[str, Counted]:
    """Return the launches of each call that does not fail, or an empty dict without CUPTI."""
    if not torch.cuda.is_available():
        return {}
    done: list[str] = []
    try:
        with profile(use_device="cuda", use_cpu=False, use_kineto=True) as seen:
            for name, prepare in prepared.items():
                try:
                    call = prepare()
                except Failure:
                    continue
                _mark()
                try:
                    call()
                    done.append(name)
                except Failure:
                    done.append("")
                _mark()
        counted = between_marks(_list_kernels(seen))
    except (RuntimeError, OSError, AttributeError):  # CUPTI is missing, in use, or not permitted
        return {}
    if len(counted) != len(done):
        return {}
    return {name: call for name, call in zip(done, counted, strict=True) if name}


def _mark() -> None:
    synchronize()  # the call may have used any stream
    _sleep(_MARK_CYCLES)
    synchronize()


def _list_kernels(seen: Any) -> list[Ran]:
    events = [
        e
        for e in seen.function_events or ()
        if e.device_type == torch.autograd.DeviceType.CUDA
        and not getattr(e, "is_user_annotation", False)
    ]
    return [
        Ran(e.name, float(e.time_range.end - e.time_range.start))
        for e in sorted(events, key=lambda e: e.time_range.start)
    ]


def between_marks(ran: Sequence[Ran]) -> list[Counted]:
    marks = [at for at, kernel in enumerate(ran) if MARK in kernel.name]
    calls = [ran[first + 1 : last] for first, last in zip(marks[::2], marks[1::2], strict=False)]
    return [Counted(len(call), round(sum(kernel.taken_us for kernel in call), 3)) for call in calls]

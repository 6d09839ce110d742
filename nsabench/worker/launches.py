"""Count what a call launches on the device, through CUPTI, after all timing."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.autograd.profiler import profile  # torch.profiler imports the compiler

from nsabench.failure import Failure

# CUPTI is unloaded afterwards, so that it does not slow the calls of later cases.
os.environ.setdefault("TEARDOWN_CUPTI", "1")
# A kernel of torch.cuda._sleep marks where a call begins and ends.
MARK, _MARK_CYCLES = "spin_kernel", 1000

# Bound here, before foreign code is imported.
_sleep, _synchronize = torch.cuda._sleep, torch.cuda.synchronize


class Ran(NamedTuple):
    name: str  # of a kernel, a copy or a fill
    taken_us: float


class Counted(NamedTuple):
    """kernels_us: the sum of the times of all kernels, also if some ran at once."""

    launches: int
    kernels_us: float


def count(prepared: Mapping[str, Callable[[], Callable[[], Any]]]) -> dict[str, Counted]:
    """Return the launches of each call that does not fail; none without CUPTI."""
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
    _synchronize()  # the call may have used any stream
    _sleep(_MARK_CYCLES)
    _synchronize()


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

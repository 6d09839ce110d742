"""How many kernels, copies and fills a call puts on the device, and how long they take (by CUPTI).

They are counted once a case, after all timing: CUPTI watches every launch of the process meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.autograd.profiler import profile  # torch.profiler imports the compiler

from nsabench.failure import Failure

# CUPTI lets go of the process afterwards, so that the calls of later cases cost what they did.
_TEARDOWN = "TEARDOWN_CUPTI"
MARK, _MARK_CYCLES = "spin_kernel", 1000  # the kernel of torch.cuda._sleep

# Bound here, before foreign code is imported.
_sleep, _synchronize = torch.cuda._sleep, torch.cuda.synchronize


class Ran(NamedTuple):
    name: str  # of a kernel, a copy or a fill
    taken_us: float


class Counted(NamedTuple):
    """kernels_us: the sum of their times, also if some ran at once."""

    launches: int
    kernels_us: float


def count(prepared: Mapping[str, Callable[[], Callable[[], Any]]]) -> dict[str, Counted]:
    """Return by name what calls launch; `prepared` makes them ready, which does not count.

    A call that fails is left out, and so are all without CUPTI. A kernel of our own marks where a
    call begins and ends.
    """
    if not torch.cuda.is_available():
        return {}
    os.environ.setdefault(_TEARDOWN, "1")
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
        found = between_marks(_on_device(seen))
    except (RuntimeError, OSError, AttributeError):  # CUPTI is missing, in use, or not permitted
        return {}
    if len(found) != len(done):
        return {}
    return {name: counted for name, counted in zip(done, found, strict=True) if name}


def _mark() -> None:
    _synchronize()  # whatever stream it was on
    _sleep(_MARK_CYCLES)
    _synchronize()


def _on_device(seen: Any) -> list[Ran]:
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
    """Count between the first and the second mark, the third and the fourth, and so on."""
    marks = [at for at, one in enumerate(ran) if MARK in one.name]
    calls = [ran[first + 1 : last] for first, last in zip(marks[::2], marks[1::2], strict=False)]
    return [Counted(len(call), round(sum(one.taken_us for one in call), 3)) for call in calls]

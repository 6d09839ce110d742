"""Controls that aim at the clock: they lie to it, warm the cache before it, or waste its time.

Their outputs are right. The first two are defeated if the trick gained them nothing (check
`timer`), the third if no speed-up is quoted against it (check `baseline`).
"""

from __future__ import annotations

import threading
import time
import weakref
from functools import cache
from typing import Any

import torch
from torch import Tensor

from nsabench import Unsupported
from nsabench.execution.timing.l2_flush import l2_bytes
from nsabench.implementations.controls.capturing import decline_in_a_graph
from nsabench.registry import Honest, control

SLEEP_FACTOR = 9.0  # well over what counts as slow, also beside busy neighbours
LEAST_SLEEP_S = 2e-3

_perf_counter = time.perf_counter


class _Lie:
    """While any output of the control lives, the clocks stand still; then they are put back."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a finalizer may run in the middle of `begin`
        self._outputs = 0
        self._true = {
            (time, "perf_counter"): time.perf_counter,
            (time, "perf_counter_ns"): time.perf_counter_ns,
            (torch.cuda.Event, "elapsed_time"): torch.cuda.Event.elapsed_time,
        }

    def begin(self, output: Tensor) -> None:
        with self._lock:
            weakref.finalize(output, self._end)
            self._outputs += 1
            if self._outputs == 1:
                now, now_ns = time.perf_counter(), time.perf_counter_ns()
                lies = (lambda: now, lambda: now_ns, lambda start, end: 1e-6)
                for (owner, name), lie in zip(self._true, lies, strict=True):
                    setattr(owner, name, lie)

    def _end(self) -> None:
        with self._lock:
            self._outputs -= 1
            if self._outputs == 0:
                for (owner, name), true in self._true.items():
                    setattr(owner, name, true)


_lie = _Lie()


@control(caught_by="timer", wraps=True)
def patched_clocks(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    """Stops `time.perf_counter` and `torch.cuda.Event` for as long as its output is held."""
    decline_in_a_graph(tensors[0])
    out = honest(*tensors, **options)
    _lie.begin(out)
    return out


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


@control(caught_by="timer", devices=("cuda",), wraps=True)
def l2_warm_replay(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    """Reads all but the first input on another stream while the timer holds the caller's, to find
    them in L2.

    Under a timer that flushed the L2 before it held the stream, this made `sdpa_gqa` take 0.0118 ms
    for 33 MB on an H200 in place of 0.0149 ms.
    """
    decline_in_a_graph(tensors[0])
    device = tensors[0].device
    if sum(t.nbytes for t in tensors) > l2_bytes(torch.cuda.get_device_properties(device)):
        raise Unsupported("the inputs do not fit in L2 together")
    with torch.cuda.stream(_side_stream(device)):
        for read in tensors[1:] or tensors:
            read.sum()
    return honest(*tensors, **options)


@control(caught_by="baseline", wraps=True)
def sleeping_wrapper(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    """A right answer from a slow wrapper: the baseline behind many a speed-up of hundreds."""
    decline_in_a_graph(tensors[0])
    start = _perf_counter()
    out = honest(*tensors, **options)
    if out.is_cuda:
        torch.cuda.synchronize()
    time.sleep(max(LEAST_SLEEP_S, SLEEP_FACTOR * (_perf_counter() - start)))
    return out

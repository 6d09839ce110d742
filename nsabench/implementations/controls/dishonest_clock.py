"""Controls that aim at the clock: they lie to it, warm the cache before it, or waste its time.

Their outputs are right. The first two are defeated if the trick gained them nothing (check
`timer`), the third if no speed-up is quoted against it (check `baseline`).
"""

from __future__ import annotations

import threading
import time
import weakref
from functools import cache

import torch
from torch import Tensor

from nsabench import Unsupported, implementation
from nsabench.implementations.controls.capturing import decline_in_a_graph
from nsabench.implementations.sdpa import gqa, heads_as_queries

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


@implementation(
    op="selection_rows",
    name="patched_clocks",
    role="control",
    devices=("cuda", "cpu"),
    caught_by="timer",
    wraps="sdpa_heads_as_queries",
)
def patched_clocks(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
    """Stops `time.perf_counter` and `torch.cuda.Event` for as long as its output is held."""
    decline_in_a_graph(q)
    out = heads_as_queries(q, k, v, sm_scale)
    _lie.begin(out)
    return out


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


@implementation(
    op="selection_rows",
    name="l2_warm_replay",
    role="control",
    devices=("cuda",),
    caught_by="timer",
    wraps="sdpa_gqa",
)
def l2_warm_replay(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
    """Reads K and V on another stream while the timer holds the caller's, to find them in L2.

    On an H200 this made 33 MB in 0.0149 ms take 0.0118 ms under a timer that flushed the L2 before
    it held the stream.
    """
    decline_in_a_graph(q)
    if k.nbytes + v.nbytes > torch.cuda.get_device_properties(q.device).L2_cache_size:
        raise Unsupported("K and V do not fit in L2 together")
    with torch.cuda.stream(_side_stream(q.device)):
        k.sum()
        v.sum()
    return gqa(q, k, v, sm_scale)


@implementation(
    op="selection_rows",
    name="sleeping_wrapper",
    role="control",
    devices=("cuda", "cpu"),
    caught_by="baseline",
    wraps="sdpa_heads_as_queries",
)
def sleeping_wrapper(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
    """A right answer from a slow wrapper: the baseline behind many a speed-up of hundreds."""
    decline_in_a_graph(q)
    start = _perf_counter()
    out = heads_as_queries(q, k, v, sm_scale)
    if q.is_cuda:
        torch.cuda.synchronize()
    time.sleep(max(LEAST_SLEEP_S, SLEEP_FACTOR * (_perf_counter() - start)))
    return out

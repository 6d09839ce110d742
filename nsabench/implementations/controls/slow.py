"""Controls that waste time (checks `baseline` and `host`), or postpone work (check `burst`)."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from nsabench.implementations.controls import _shared
from nsabench.implementations.controls._shared import decline_in_a_graph
from nsabench.registry import Honest, control

SLEEP_FACTOR = 9.0  # well over what counts as slow, even on a busy machine
LEAST_SLEEP_S = 2e-3
# On a CPU, other implementations may lose 4 ms at the end of a time slice: sleep far longer.
LEAST_SLEEP_ON_A_CPU_S = 2e-2
BACKWARD_FACTOR, LEAST_BACKWARD_S = 20.0, 2e-2
# The sleep of a long call is LONG_FACTOR times its time: over `roofline.SLOW`, but not minutes.
LONG_FACTOR, LONG_S = 4.0, 0.1
REPEATS = 16  # all calls except the first find inputs in L2, and may take a third of the time
NEEDLESS_S = 200e-6
LAUNCHES = 1000
# Calls in a loop are a few µs apart; samples and checked calls are at least 100 µs apart.
HURRIED_S = 40e-6
AT_EASE_S = 0.5e-3  # a shorter pause does not end a loop
STILL_WANTED = 4
# Results must be checked before this time is over, also on a host with several busy GPUs.
PUT_OFF_S = 20e-3

# These are bound now, since a control that stops the clocks may run in the same process.
_now, _sleep = time.perf_counter, time.sleep


def _time_when_done(tensor: Tensor) -> float:
    if tensor.is_cuda:
        torch.cuda.synchronize()
    return _now()


def _oversleep(start: float, tensor: Tensor, factor: float, least_s: float) -> None:
    taken = _time_when_done(tensor) - start
    _sleep(max(least_s, min(factor * taken, LONG_S + LONG_FACTOR * taken)))


@control(caught_by="baseline", wraps=True)
def sleeping_wrapper(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    decline_in_a_graph(tensors[0])
    start = _now()
    out = honest(*tensors, **options)
    least_s = LEAST_SLEEP_S if out.is_cuda else LEAST_SLEEP_ON_A_CPU_S
    _oversleep(start, out, SLEEP_FACTOR, least_s)
    return out


@control(caught_by="baseline", wraps=True, directions=("backward", "step"))
def sleeping_backward(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    start, missing = 0.0, len(honest.op.differentiable)

    def begin(gradient: Tensor) -> Tensor:
        nonlocal start
        start = _time_when_done(gradient)
        return gradient

    def oversleep(gradient: Tensor) -> Tensor:
        nonlocal missing
        missing -= 1
        if not missing:
            _oversleep(start, gradient, BACKWARD_FACTOR, LEAST_BACKWARD_S)
        return gradient

    changes = dict.fromkeys(honest.op.differentiable, oversleep)
    return _shared.with_gradient(_shared.with_gradients(honest, tensors, options, changes), begin)


@control(caught_by="baseline", devices=("cuda",), wraps=True, modes=("graph",))
def repeating_wrapper(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    """Is right, but computes its output 16 times, which costs time even in a graph."""
    for _ in range(REPEATS - 1):
        honest(*tensors, **options)
    return honest(*tensors, **options)


@control(caught_by="host", devices=("cuda",), modes=("stream",))
def needless_python(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    decline_in_a_graph(tensors[0])
    end = _now() + NEEDLESS_S
    while _now() < end:
        pass
    return honest(*tensors, **options)


@control(caught_by="host", devices=("cuda",), modes=("stream",))
def thousand_launches(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    decline_in_a_graph(tensors[0])
    counter = torch.zeros(1, device=tensors[0].device)
    for _ in range(LAUNCHES - 1):
        counter.add_(1)
    return honest(*tensors, **options)


class _Thread:
    """Runs the work that it was given, once no call has returned for `PUT_OFF_S`."""

    def __init__(self) -> None:
        self._given: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.returned_s = -1.0  # when a call last returned
        self.hurries = False
        threading.Thread(target=self._run, daemon=True).start()

    def put_off(self, work: Callable[[], None]) -> None:
        self._given.put(work)

    def _run(self) -> None:
        while True:
            work = self._given.get()
            while _now() - self.returned_s < PUT_OFF_S:
                _sleep(PUT_OFF_S / 3)
            if self._given.qsize() < STILL_WANTED:  # the bench keeps only a loop's last results
                work()


_thread = cache(_Thread)  # one thread for each process: a forked process makes its own


@control(caught_by="burst", modes=("stream",))
def hidden_in_a_thread(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    """Is honest if called alone. In a loop, it returns unwritten memory, and fills it later."""
    decline_in_a_graph(tensors[0])
    thread, first = _thread(), tensors[0]
    gap_s = _now() - thread.returned_s
    thread.hurries = gap_s < (AT_EASE_S if thread.hurries else HURRIED_S)
    if thread.hurries:
        out = _shared.empty_output(honest, tensors, options)
        stream = torch.cuda.current_stream() if first.is_cuda else None

        def work() -> None:
            with torch.no_grad(), torch.cuda.stream(stream):
                out.copy_(honest(*tensors, **options))

        thread.put_off(work)
    else:
        out = honest(*tensors, **options)
    thread.returned_s = _now()
    return out

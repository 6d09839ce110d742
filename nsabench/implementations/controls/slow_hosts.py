"""Controls that aim at calls one behind the other: they cost their host, or hide what they cost it.

Their outputs are right wherever a call is looked at by itself, and their kernels are as fast as the
baseline's. `host` must find those that cost, and `burst` the one that hides.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from nsabench.implementations.controls.capturing import decline_in_a_graph
from nsabench.implementations.controls.honest import empty_output
from nsabench.registry import Honest, control

NEEDLESS_S = 200e-6
LAUNCHES = 1000
# Between two calls of a loop lie a few µs. Between two samples, or two calls that are compared, it
# is a tenth of a millisecond at least.
HURRIED_S = 40e-6
AT_EASE_S = 0.5e-3  # a loop that was interrupted for no longer is still the same loop
STILL_WANTED = 4
# Longer than it takes to await a device and look at what a loop returned: 3 ms were not enough on a
# host that measured on four GPUs.
PUT_OFF_S = 20e-3

# Bound here: a control that stops the clocks may run beside them.
_now, _sleep = time.perf_counter, time.sleep


@control(caught_by="host", devices=("cuda",), modes=("stream",))
def needless_python(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    """Holds its host for 200 µs a call: checks, lists and dictionaries of a wrapper."""
    decline_in_a_graph(tensors[0])
    end = _now() + NEEDLESS_S
    while _now() < end:
        pass
    out: Tensor = honest(*tensors, **options)
    return out


@control(caught_by="host", devices=("cuda",), modes=("stream",))
def thousand_launches(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    """Launches a thousand kernels that do next to nothing, and then the one that works."""
    decline_in_a_graph(tensors[0])
    counter = torch.zeros(1, device=tensors[0].device)
    for _ in range(LAUNCHES - 1):
        counter.add_(1)
    out: Tensor = honest(*tensors, **options)
    return out


class _Thread:
    """Does what it is given once nothing more has come for a while."""

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
            if self._given.qsize() < STILL_WANTED:  # who loops keeps the last results alone
                work()


@cache
def _thread() -> _Thread:
    """Of this process, and not of the one that it was forked from."""
    return _Thread()


@control(caught_by="burst", modes=("stream",))
def hidden_in_a_thread(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    """Does its work in the call when it comes alone. Called in a loop, it hands the work to a
    thread, which waits until the loop is over, and returns memory that is yet to be written."""
    decline_in_a_graph(tensors[0])
    thread, first = _thread(), tensors[0]
    gap_s = _now() - thread.returned_s
    thread.hurries = gap_s < (AT_EASE_S if thread.hurries else HURRIED_S)
    if thread.hurries:
        out = empty_output(honest, tensors, options)
        stream = torch.cuda.current_stream() if first.is_cuda else None

        def work() -> None:
            with torch.no_grad(), torch.cuda.stream(stream):
                out.copy_(honest(*tensors, **options))

        thread.put_off(work)
    else:
        out = honest(*tensors, **options)
    thread.returned_s = _now()
    return out

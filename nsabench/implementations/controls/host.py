"""Controls that waste the time of their host (check `host`) or hide work in a loop (`burst`)."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from nsabench.implementations.controls._shared import decline_in_a_graph, empty_output
from nsabench.registry import Honest, control

NEEDLESS_S = 200e-6
LAUNCHES = 1000
# Calls in a loop are a few µs apart; samples and checked calls are at least 100 µs apart.
HURRIED_S = 40e-6
AT_EASE_S = 0.5e-3  # a loop that was interrupted for no longer is still the same loop
STILL_WANTED = 4
# Longer than the check of a loop's results. On a host with four busy GPUs, 3 ms were too short.
PUT_OFF_S = 20e-3

# Bound now, since a control that stops the clocks may run in the same process.
_now, _sleep = time.perf_counter, time.sleep


@control(caught_by="host", devices=("cuda",), modes=("stream",))
def needless_python(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    """Holds the host for 200 µs a call, as a wrapper that checks much in Python does."""
    decline_in_a_graph(tensors[0])
    end = _now() + NEEDLESS_S
    while _now() < end:
        pass
    return honest(*tensors, **options)


@control(caught_by="host", devices=("cuda",), modes=("stream",))
def thousand_launches(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    """Launches a thousand needless kernels before the one that works."""
    decline_in_a_graph(tensors[0])
    counter = torch.zeros(1, device=tensors[0].device)
    for _ in range(LAUNCHES - 1):
        counter.add_(1)
    return honest(*tensors, **options)


class _Thread:
    """Runs given work once no call has returned for a while."""

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
            if self._given.qsize() < STILL_WANTED:  # a loop keeps its last results alone
                work()


_thread = cache(_Thread)  # of this process; a forked process makes its own


@control(caught_by="burst", modes=("stream",))
def hidden_in_a_thread(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    """Works if called alone; in a loop, it returns unwritten memory and fills it afterwards."""
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

"""Controls whose work is not where the caller's stream, and so the timer, expects it."""

from __future__ import annotations

import threading
import time
from functools import cache
from typing import Any

import torch
from torch import Tensor

from nsabench.implementations.controls.capturing import decline_in_a_graph
from nsabench.implementations.controls.honest import empty_output
from nsabench.registry import Honest, control

# About 1 ms, so that the escaped work is late however small it is, and however long a busy host
# takes to ask for the output: after 0.1 ms it was once too late to find it unfinished.
LATE_CYCLES = 2_000_000
LATE_S = 0.02


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


@control(caught_by="parity", devices=("cuda",))
def side_stream_escape(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    """Works on a stream of its own that neither waits for the caller's nor is waited for."""
    decline_in_a_graph(tensors[0])
    with torch.cuda.stream(_side_stream(tensors[0].device)):
        return honest(*tensors, **options)


@control(caught_by="parity", devices=("cuda",))
def side_stream_unjoined(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    """Waits for the caller's stream, but the caller's does not wait for the result."""
    decline_in_a_graph(tensors[0])
    side = _side_stream(tensors[0].device)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(LATE_CYCLES)
        return honest(*tensors, **options)


@control(caught_by="parity", devices=("cuda",))
def default_stream(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    """Works on the default stream, whatever the caller's is, as a launch that names none does."""
    decline_in_a_graph(tensors[0])
    with torch.cuda.stream(torch.cuda.default_stream(tensors[0].device)):
        return honest(*tensors, **options)


@control(caught_by="parity")
def worker_thread_escape(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    """Hands the work to a thread and returns at once, the output still to be written."""
    decline_in_a_graph(tensors[0])
    out = empty_output(honest, tensors, options)

    def work() -> None:
        time.sleep(LATE_S)
        out.copy_(honest(*tensors, **options))

    threading.Thread(target=work, daemon=True).start()
    return out

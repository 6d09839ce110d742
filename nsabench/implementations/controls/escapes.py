"""Controls whose work is not where the caller's stream, and so the timer, expects it."""

from __future__ import annotations

import threading
import time
from functools import cache

import torch
from torch import Tensor

from nsabench import implementation
from nsabench.implementations.controls.capturing import decline_in_a_graph
from nsabench.implementations.sdpa import heads_as_queries

LATE_CYCLES = 200_000  # about 0.1 ms, so that the escaped work is late however small it is
LATE_S = 0.02


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


@implementation(
    op="selection_rows",
    name="side_stream_escape",
    role="control",
    devices=("cuda",),
    caught_by="parity",
)
def side_stream_escape(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
    """Works on a stream of its own that neither waits for the caller's nor is waited for."""
    decline_in_a_graph(q)
    with torch.cuda.stream(_side_stream(q.device)):
        return heads_as_queries(q, k, v, sm_scale)


@implementation(
    op="selection_rows",
    name="side_stream_unjoined",
    role="control",
    devices=("cuda",),
    caught_by="parity",
)
def side_stream_unjoined(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
    """Waits for the caller's stream, but the caller's does not wait for the result."""
    decline_in_a_graph(q)
    side = _side_stream(q.device)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(LATE_CYCLES)
        return heads_as_queries(q, k, v, sm_scale)


@implementation(
    op="selection_rows",
    name="worker_thread_escape",
    role="control",
    devices=("cuda", "cpu"),
    caught_by="parity",
)
def worker_thread_escape(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
    """Hands the work to a thread and returns at once, the output still to be written."""
    decline_in_a_graph(q)
    out = torch.empty(*q.shape[:2], v.shape[2], dtype=q.dtype, device=q.device)

    def work() -> None:
        time.sleep(LATE_S)
        out.copy_(heads_as_queries(q, k, v, sm_scale))

    threading.Thread(target=work, daemon=True).start()
    return out

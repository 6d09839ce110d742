"""Workspace of the split kernels: partial outputs and the arrival counters.

The counters must be zero when a kernel starts and are zero again when it ends. Keeping them per
(device, stream) saves a memset per call, and calls on one stream never overlap. During CUDA-graph
capture a fresh zeroed tensor is taken instead: it belongs to the graph, so a replay cannot meet a
call that runs on another stream at the same time.
"""

from __future__ import annotations

import threading

import torch

_counters: dict[tuple[int, int], torch.Tensor] = {}
_lock = threading.Lock()


def counters(device: torch.device, n: int) -> torch.Tensor:
    """At least ``n`` int32 counters, all zero, that no concurrent kernel uses."""
    if device.type != "cuda" or torch.cuda.is_current_stream_capturing():
        return torch.zeros(n, dtype=torch.int32, device=device)
    stream = torch.cuda.current_stream(device)
    key = (stream.device_index, stream.cuda_stream)
    found = _counters.get(key)
    if found is not None and found.numel() >= n:
        return found
    with _lock:
        fresh = torch.zeros(max(n, 4096), dtype=torch.int32, device=device)
        _counters[key] = fresh
    return fresh


def partials(
    device: torch.device, slots: int, heads: int, dv: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Uninitialised fp32 partial outputs [slots, heads, dv] and log2 LSEs [slots, heads]."""
    buffer = torch.empty(slots * heads * (dv + 1), dtype=torch.float32, device=device)
    edge = slots * heads * dv
    return buffer[:edge], buffer[edge:]

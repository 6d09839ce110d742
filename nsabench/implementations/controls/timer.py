"""Controls with right results. They stop the clock or warm the cache, and must not look faster."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nsabench import Unsupported
from nsabench.implementations.controls._shared import decline_in_a_graph, is_captured, side_stream
from nsabench.registry import Honest, control
from nsabench.worker.timing.cuda import l2_bytes


class _Clocks:
    def __init__(self) -> None:
        self._stopped = False
        self._true = {
            (time, "perf_counter"): time.perf_counter,
            (time, "perf_counter_ns"): time.perf_counter_ns,
            (torch.cuda.Event, "elapsed_time"): torch.cuda.Event.elapsed_time,
        }

    def stop(self) -> None:
        if not self._stopped:
            self._stopped = True
            now, now_ns = time.perf_counter(), time.perf_counter_ns()
            lies = (lambda: now, lambda: now_ns, lambda start, end: 1e-6)
            for (owner, name), lie in zip(self._true, lies, strict=True):
                setattr(owner, name, lie)

    def put_back(self) -> None:
        self._stopped = False
        for (owner, name), true in self._true.items():
            setattr(owner, name, true)


class _LiveOutputs:
    """Calls `begin` for the first live output of a control, and `end` when none is left."""

    def __init__(self, begin: Callable[[], None], end: Callable[[], None]) -> None:
        self._begin, self._end = begin, end
        self._lock = threading.RLock()  # a finalizer may interrupt `hold` in its thread
        self._alive = 0

    def hold(self, output: Tensor) -> None:
        with self._lock:
            weakref.finalize(output, self._release)
            self._alive += 1
            if self._alive == 1:
                self._begin()

    def _release(self) -> None:
        with self._lock:
            self._alive -= 1
            if self._alive == 0:
                self._end()


_clocks = _Clocks()
_lies = _LiveOutputs(_clocks.stop, _clocks.put_back)


@control(caught_by="timer", wraps=True, directions=())
def patched_clocks(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    """Stops `time.perf_counter` and `torch.cuda.Event` while its output is alive."""
    decline_in_a_graph(tensors[0])
    out = honest(*tensors, **options)
    _lies.hold(out)
    _clocks.stop()
    return out


class _Replays:
    """Stops the clocks at a replay of the control's graph, until another graph is replayed."""

    def __init__(self) -> None:
        self._outputs = _LiveOutputs(self._patch, self._put_back)
        self._capturing = False
        self._own: weakref.WeakSet[torch.cuda.CUDAGraph] = weakref.WeakSet()
        self._true: dict[str, Any] = {}

    def watch(self, output: Tensor) -> None:
        self._capturing = True
        self._outputs.hold(output)

    def _patch(self) -> None:
        graphs = torch.cuda.CUDAGraph
        self._true = {name: getattr(graphs, name) for name in ("capture_end", "replay")}
        graphs.capture_end = lambda graph: self._on_capture_end(graph)
        graphs.replay = lambda graph: self._on_replay(graph)

    def _on_capture_end(self, graph: torch.cuda.CUDAGraph) -> None:
        own, self._capturing = self._capturing, False
        self._true["capture_end"](graph)
        if own:
            self._own.add(graph)

    def _on_replay(self, graph: torch.cuda.CUDAGraph) -> None:
        self._true["replay"](graph)
        if graph in self._own:
            _clocks.stop()
        else:
            _clocks.put_back()

    def _put_back(self) -> None:
        _clocks.put_back()
        for name, true in self._true.items():
            setattr(torch.cuda.CUDAGraph, name, true)


_replays = _Replays()


@control(caught_by="timer", devices=("cuda",), wraps=True, modes=("graph",))
def patched_replay(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    """Patches `CUDAGraph.replay` to stop the clocks after replays of its own graphs."""
    out = honest(*tensors, **options)
    if is_captured(out):
        _replays.watch(out)
    return out


@control(caught_by="timer", devices=("cuda",), wraps=True)
def l2_warm_replay(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    """Reads inputs into L2 on another stream, while a spin of the timer delays the caller's."""
    decline_in_a_graph(tensors[0])
    device = tensors[0].device
    if sum(t.nbytes for t in tensors) > l2_bytes(torch.cuda.get_device_properties(device)):
        raise Unsupported("the inputs do not fit in L2 together")
    with torch.cuda.stream(side_stream(device)):
        for read in tensors[1:] or tensors:
            read.sum()
    return honest(*tensors, **options)

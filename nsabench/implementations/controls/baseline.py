"""Controls that return the right output slowly: no speed-up may be quoted against them."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from nsabench.implementations.controls._shared import (
    decline_in_a_graph,
    with_gradient,
    with_gradients,
)
from nsabench.registry import Honest, control

SLEEP_FACTOR = 9.0  # well over what counts as slow, also on a busy machine
LEAST_SLEEP_S = 2e-3
# On a CPU, other processes lose up to 4 ms at the end of a time slice; one that sleeps does not.
LEAST_SLEEP_ON_A_CPU_S = 2e-2
BACKWARD_FACTOR, LEAST_BACKWARD_S = 20.0, 2e-2
# For a long call, 5 times as long suffices (`baseline.SLOW`); 10 times would take minutes.
LONG_FACTOR, LONG_S = 4.0, 0.1
REPEATS = 16  # with inputs in L2, all but the first may take a third of the time

_perf_counter = time.perf_counter


def _now(tensor: Tensor) -> float:
    if tensor.is_cuda:
        torch.cuda.synchronize()
    return _perf_counter()


def _oversleep(start: float, tensor: Tensor, factor: float, least_s: float) -> None:
    taken = _now(tensor) - start
    time.sleep(max(least_s, min(factor * taken, LONG_S + LONG_FACTOR * taken)))


@control(caught_by="baseline", wraps=True)
def sleeping_wrapper(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    """Right, but its wrapper sleeps."""
    decline_in_a_graph(tensors[0])
    start = _perf_counter()
    out = honest(*tensors, **options)
    least_s = LEAST_SLEEP_S if out.is_cuda else LEAST_SLEEP_ON_A_CPU_S
    _oversleep(start, out, SLEEP_FACTOR, least_s)
    return out


@control(caught_by="baseline", wraps=True, directions=("backward", "step"))
def sleeping_backward(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    """Right, but its backward sleeps before the last gradient."""
    start, missing = 0.0, len(honest.op.differentiable)

    def begin(gradient: Tensor) -> Tensor:
        nonlocal start
        start = _now(gradient)
        return gradient

    def oversleep(gradient: Tensor) -> Tensor:
        nonlocal missing
        missing -= 1
        if not missing:
            _oversleep(start, gradient, BACKWARD_FACTOR, LEAST_BACKWARD_S)
        return gradient

    changes = dict.fromkeys(honest.op.differentiable, oversleep)
    return with_gradient(with_gradients(honest, tensors, options, changes), begin)


@control(caught_by="baseline", devices=("cuda",), wraps=True, modes=("graph",))
def repeating_wrapper(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    """Right, but it computes its output 16 times, which costs time in a graph also."""
    for _ in range(REPEATS - 1):
        honest(*tensors, **options)
    return honest(*tensors, **options)

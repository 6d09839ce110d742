"""How a call is made: eagerly, while a CUDA graph is captured, or by a tracer."""

from __future__ import annotations

import enum

import torch

_WITH_VALUES = frozenset((torch.Tensor, torch.nn.Parameter))


class Mode(enum.Enum):
    """How a call is made, which decides what it may do.

    - EAGER: everything is allowed. Launches do not go through torch's dispatcher, which is slow.
    - CAPTURED: only allocations and launches are allowed. Nothing may wait for the device.
    - TRACED: the call must be one operator of torch, because the tensors have no values, Dynamo
    reads the code, or a dispatch mode (make_fx, FlopCounterMode) watches the operators.
    """

    EAGER = "eager"
    CAPTURED = "captured"
    TRACED = "traced"


def traced(x: torch.Tensor) -> bool:
    """Return whether ``mode(x)`` is TRACED. This is fast, since captures are not looked up."""
    return (
        type(x) not in _WITH_VALUES
        or torch.compiler.is_dynamo_compiling()
        or torch._C._len_torch_dispatch_stack() > 0
    )


def mode(x: torch.Tensor) -> Mode:
    if traced(x):
        return Mode.TRACED
    if x.is_cuda and torch.cuda.is_current_stream_capturing():
        return Mode.CAPTURED
    return Mode.EAGER

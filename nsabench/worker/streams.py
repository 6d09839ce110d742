"""Streams that the worker keeps to itself.

torch hands out 32 streams in turn, so that a stream of a candidate's can be one that a call is made
on: what it leaves there unordered would be in order by accident.
"""

from __future__ import annotations

import ctypes
from functools import cache

import torch

NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: not ordered with the default stream either


def own_streams(count: int) -> list[torch.cuda.Stream]:
    """The first `count` of them, on the current device. Raises RuntimeError when it gives none."""
    return [_stream(place) for place in range(count)]


@cache
def _stream(place: int) -> torch.cuda.Stream:
    torch.cuda.synchronize()  # the driver is asked in the context that torch has made
    handle = ctypes.c_void_p()
    code = ctypes.CDLL("libcuda.so.1").cuStreamCreate(ctypes.byref(handle), NON_BLOCKING)
    if code:
        raise RuntimeError(f"the driver made no stream {place}: cuStreamCreate gave {code}")
    return torch.cuda.ExternalStream(handle.value)

"""Calls of the CUDA driver that torch does not offer: limits of the L2, and streams of our own."""

from __future__ import annotations

import ctypes
from functools import cache

import torch

_CDLL = ctypes.CDLL  # bound before foreign code is imported
# Of CUlimit: bytes that a miss fetches, and bytes set aside for what is to persist. A kernel that
# sets most of the cache aside takes it from those that are measured next.
FETCH_GRANULARITY, SET_ASIDE = 5, 6
NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: not ordered with the default stream either


def limit(which: int) -> int:
    """Return a limit of the current context in bytes. Raises RuntimeError."""
    bytes_ = ctypes.c_size_t()
    _check("cuCtxGetLimit", _driver().cuCtxGetLimit(ctypes.byref(bytes_), which))
    return bytes_.value


def set_limit(which: int, bytes_: int) -> None:
    """Raises RuntimeError."""
    _check("cuCtxSetLimit", _driver().cuCtxSetLimit(which, ctypes.c_size_t(bytes_)))


def own_streams(count: int) -> list[torch.cuda.Stream]:
    """Return the first `count` streams that no candidate gets, on the current device.

    torch hands out 32 streams in turn. On one that a candidate has too, its work would be in order
    by accident.
    """
    return [_stream(place) for place in range(count)]


@cache
def _stream(place: int) -> torch.cuda.Stream:
    torch.cuda.synchronize()  # the driver is asked in the context that torch has made
    handle = ctypes.c_void_p()
    _check("cuStreamCreate", _driver().cuStreamCreate(ctypes.byref(handle), NON_BLOCKING))
    return torch.cuda.ExternalStream(handle.value)


@cache
def _driver() -> ctypes.CDLL:
    return _CDLL("libcuda.so.1")


def _check(function: str, code: int) -> None:
    if code:
        raise RuntimeError(f"{function} gave {code}")

"""Call the CUDA driver for what torch does not offer: limits of the L2, and a stream of its own."""

from __future__ import annotations

import ctypes
from functools import cache

import torch

_CDLL = ctypes.CDLL  # bound before foreign code is imported
# Values of CUlimit. If a kernel sets most of the L2 aside, later kernels have less of it.
LIMITS = {"L2 set aside": 6, "bytes fetched into L2": 5}
NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: not ordered with the default stream


def limit(which: int) -> int:
    """Return a limit in bytes. Raises RuntimeError."""
    bytes_ = ctypes.c_size_t()
    _check("cuCtxGetLimit", _driver().cuCtxGetLimit(ctypes.byref(bytes_), which))
    return bytes_.value


def set_limit(which: int, bytes_: int) -> None:
    _check("cuCtxSetLimit", _driver().cuCtxSetLimit(which, ctypes.c_size_t(bytes_)))


@cache
def own_stream() -> torch.cuda.Stream:
    """Return a stream that no candidate gets: torch hands out 32 in turn, to all that ask."""
    torch.cuda.synchronize()  # makes sure that torch has made its context
    handle = ctypes.c_void_p()
    _check("cuStreamCreate", _driver().cuStreamCreate(ctypes.byref(handle), NON_BLOCKING))
    return torch.cuda.ExternalStream(handle.value)


@cache
def _driver() -> ctypes.CDLL:
    return _CDLL("libcuda.so.1")


def _check(function: str, code: int) -> None:
    if code:
        raise RuntimeError(f"{function} gave {code}")

"""What a process has the L2 cache of its device do: limits of its context, which all of its kernels
are under. Who sets most of the cache aside takes it from those that are measured next; who gives it
back before its call returns took it from nobody."""

from __future__ import annotations

import ctypes
from functools import cache

_CDLL = ctypes.CDLL  # bound before foreign code is imported
# Of CUlimit: bytes that a miss fetches, and bytes set aside for what is to persist.
FETCH_GRANULARITY, SET_ASIDE = 5, 6


def limit(which: int) -> int:
    """In bytes, of the current context. Raises RuntimeError when the driver does not say."""
    bytes_ = ctypes.c_size_t()
    _check("cuCtxGetLimit", _driver().cuCtxGetLimit(ctypes.byref(bytes_), which))
    return bytes_.value


def set_limit(which: int, bytes_: int) -> None:
    """Raises RuntimeError when the driver refuses."""
    _check("cuCtxSetLimit", _driver().cuCtxSetLimit(which, ctypes.c_size_t(bytes_)))


@cache
def _driver() -> ctypes.CDLL:
    return _CDLL("libcuda.so.1")


def _check(function: str, code: int) -> None:
    if code:
        raise RuntimeError(f"{function} gave {code}")

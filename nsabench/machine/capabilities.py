"""Give up capabilities(7) of this thread for good."""

from __future__ import annotations

import ctypes
import os

LIBC = ctypes.CDLL(None, use_errno=True)
_VERSION = 0x20080522
_PR_SET_NO_NEW_PRIVS = 38
CAP_DAC_OVERRIDE, CAP_IPC_LOCK, CAP_SYS_NICE = 1, 14, 23


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Set(ctypes.Structure):
    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


def require_success(result: int, what: str) -> int:
    """Return the result of a `LIBC` call. Raises `OSError` if it is negative."""
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), what)
    return result


def no_new_privileges() -> None:
    """Ensure that no program that this thread executes gets new rights. Raises `OSError`."""
    require_success(LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")


def keep(*numbers: int) -> None:
    """Drop all capabilities of this thread except `numbers`, each below 32. Raises `OSError`."""
    header, sets = _Header(_VERSION, 0), (_Set * 2)()
    require_success(LIBC.capget(ctypes.byref(header), sets), "capabilities")
    kept = sum(1 << number for number in numbers) & sets[0].permitted
    sets[0], sets[1] = _Set(kept, kept, 0), _Set(0, 0, 0)
    require_success(LIBC.capset(ctypes.byref(header), sets), "capabilities")
